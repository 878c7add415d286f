// Plots made of rectangles: bars with whiskers, and confusion matrices.
const blocks = (() => {
  const { add, plain, COLORS } = parts;
  const LETTER = 7; // width of a letter in a plot, in pixels
  const cut = (name, room) => name.length <= room ? name : `${name.slice(0, Math.max(1, room - 1))}…`;

  function bars(plot) {
    const { bars, groups } = plot, narrow = plot.width < 500, row = narrow ? 44 : 30;
    plot.begin(26 + row * Math.max(1, bars.length));
    const longest = Math.max(...bars.map((bar) => bar.name.length), 4);
    const left = narrow ? 8 : Math.min(plot.width * 0.4, 14 + LETTER * longest);
    const right = plot.width - 76;
    const high = Math.max(...bars.map((bar) => bar.y + (bar.err || 0)), 1e-12);
    plot.px = (x) => left + (right - left) * x / high;
    plot.write(left, 12, plot.plot.unit, "start");
    bars.forEach((bar, n) => {
      const top = 22 + n * row, y = narrow ? top + 18 : top;
      const color = COLORS[Math.max(0, groups.indexOf(bar.group)) % COLORS.length];
      if (narrow) plot.write(left, top + 13, cut(bar.name, plot.width / LETTER), "start", false);
      else plot.write(left - 8, y + 16, cut(bar.name, (left - 14) / LETTER), "end", false);
      const mark = add(plot.svg, "rect", { x: left, y, height: 22, fill: color, class: "curve",
        width: Math.max(1, plot.px(bar.y) - left) });
      if (bar.err) {
        const [a, b] = [plot.px(Math.max(0, bar.y - bar.err)), plot.px(bar.y + bar.err)];
        add(plot.svg, "path", { d: `M${a} ${y + 11}H${b}M${a} ${y + 6}v10M${b} ${y + 6}v10`,
          style: "stroke: var(--text); stroke-width: 1.5; fill: none" });
      }
      plot.write(plot.px(bar.y + (bar.err || 0)) + 6, y + 16, plain(bar.y), "start", false);
      const spread = bar.err ? ` ± ${plain(bar.err)}` : "";
      mark.onpointermove = (event) => plot.showTip(plot.position(event)[0], Math.max(0, y - 40), bar.name,
        [[`${plain(bar.y)}${spread} ${plot.plot.unit}`, color]]);
    });
  }

  function heat(plot) {
    const { table, names } = plot.choice, count = table.length;
    const longest = Math.min(Math.max(...names.map((name) => name.length)), plot.width < 500 ? 9 : 16);
    const left = 14 + LETTER * longest, top = 22, side = Math.min(plot.width - left - 6, 520);
    const cell = side / count, slanted = longest * LETTER > cell - 4;
    const foot = slanted ? 26 + 0.75 * LETTER * longest : 24;
    plot.begin(top + side + foot + 20);
    plot.write(left, 12, plot.plot.unit, "start");
    table.forEach((row, y) => {
      const whole = row.reduce((a, b) => a + b, 0) || 1;
      row.forEach((number, x) => square(plot, { x, y, left: left + x * cell, top: top + y * cell, cell,
        number, share: number / whole }));
    });
    const every = Math.ceil(count / 20);
    for (let n = 0; n < count; n += every) {
      const middle = (n + 0.5) * cell, name = cut(names[n], longest);
      plot.write(left - 8, top + middle + 4, name, "end");
      const text = plot.write(left + middle, top + side + 16, name, slanted ? "end" : "middle");
      if (slanted) text.setAttribute("transform", `rotate(-45 ${left + middle} ${top + side + 16})`);
    }
    plot.write(left, plot.height - 6, "prediction; at the left the true class", "start");
  }

  function square(plot, { x, y, left, top, cell, number, share }) {
    const { names } = plot.choice;
    const mark = add(plot.svg, "rect", { x: left, y: top, class: "curve", width: cell, height: cell,
      style: `fill: rgba(var(--heat), ${share.toFixed(3)}); stroke: var(--line); stroke-width: 0.5` });
    mark.onpointermove = () => plot.showTip(left + cell, top, `true class ${names[y]}`,
      [[`predicted ${names[x]}: ${plain(number)} (${plain(100 * share)} %)`, null]]);
    if (cell < 26 || share < 0.005) return;
    add(plot.svg, "text", { x: left + cell / 2, y: top + cell / 2 + 4, "text-anchor": "middle",
      style: `pointer-events: none; fill: var(${share > 0.5 ? "--back" : "--text"})` },
    String(Math.round(100 * share)));
  }

  return { bars, heat };
})();
