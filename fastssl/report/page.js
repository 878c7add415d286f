// Draws every plot of the page as SVG from the JSON beside it. Names reach the page only as text
// (textContent), never as markup.
(() => {
  const { plots } = JSON.parse(document.getElementById("data").textContent);
  const { add, plain, clock, style, span, ticks, showTip, standalone } = parts;
  const colorIndices = {}; // by kind of plot: name → index of its color

  class Plot {
    constructor(section) {
      this.plot = plots.find((plot) => plot.id === section.dataset.plot);
      this.section = section;
      this.chosen = 0;
      this.axis = "x";
      this.hidden = new Set();
      this.makeTools(add(section, "div", { class: "tools" }));
      this.canvas = add(section, "div", { class: "canvas" });
      this.legend = add(section, "div", { class: "legend" });
      this.answer = add(section, "p", { class: "answer" });
      this.note = add(section, "p", { class: "note" });
      const runs = add(section, "details", { class: "runs" });
      add(runs, "summary", {}, "Runs behind this plot");
      this.links = add(runs, "div");
      this.show();
    }

    get choice() { return this.plot.choices[this.chosen]; }
    get lines() {
      const { x, t, series } = this.choice;
      return series.map((item) => ({ x, t, ...item, color: this.colorIndex(item.name) }));
    }
    colorIndex(name) { // one name has one color in all plots of a kind
      const known = colorIndices[this.plot.by] ??= new Map();
      if (!known.has(name)) known.set(name, known.size);
      return known.get(name);
    }
    get visible() { return this.lines.filter((line) => !this.hidden.has(line.name)); }
    get bars() { return this.choice.bars.filter((bar) => !this.hidden.has(bar.group)); }

    makeTools(tools) {
      if (this.plot.choices.length > 1) {
        const select = add(tools, "select", { "aria-label": "What to show" });
        this.plot.choices.forEach(({ name }, n) => add(select, "option", { value: n }, name));
        select.onchange = () => { this.chosen = Number(select.value); this.show(); };
      } else add(tools, "span", {}, this.choice.name);
      if (this.plot.kind === "lines") {
        const button = add(tools, "button", { type: "button", class: "axis" }, "show by time");
        button.onclick = () => {
          this.axis = this.axis === "x" ? "t" : "x";
          button.textContent = this.axis === "x" ? "show by time" : "show by step";
          this.draw();
        };
      }
      if (this.plot.id === "accuracy") {
        const label = add(tools, "label", {}, "accuracy to reach, % ");
        this.goal = add(label, "input", { type: "number", min: 0, max: 100, step: "any" });
        this.goal.oninput = () => this.draw();
      }
      const save = add(tools, "button", { type: "button", class: "save" }, "save as SVG");
      save.onclick = () => this.save();
    }

    show() {
      this.hidden.clear();
      this.note.textContent = `${this.plot.note} ${this.choice.note || ""}`.trim();
      this.links.replaceChildren();
      for (const [name, href] of this.choice.runs) add(this.links, "a", { href }, name);
      this.draw();
    }

    draw() {
      this.canvas.replaceChildren();
      this.width = Math.max(260, this.canvas.clientWidth);
      this.marks = null;
      if (this.plot.kind === "lines") this.drawLines(); else blocks[this.plot.kind](this);
      this.tip = add(this.canvas, "div", { class: "tip", role: "status" });
      this.tip.hidden = true;
      this.svg.onpointerleave = () => this.leave();
      this.drawLegend();
    }

    begin(height) {
      this.height = height;
      this.svg = add(this.canvas, "svg", { viewBox: `0 0 ${this.width} ${height}`, role: "img",
        width: this.width, height, "aria-label": `${this.plot.title}: ${this.choice.name}`,
        style: "font: 12px system-ui, sans-serif" });
      add(this.svg, "title", {}, `${this.plot.title}: ${this.choice.name}`);
    }

    write(x, y, text, anchor, soft = true) {
      return add(this.svg, "text", { x, y, "text-anchor": anchor,
        style: `fill: var(${soft ? "--soft" : "--text"})` }, text);
    }

    rule(x1, y1, x2, y2) {
      return add(this.svg, "line", { x1, y1, x2, y2, style: "stroke: var(--line)" });
    }

    drawLines() {
      this.begin(this.width < 500 ? 260 : 360);
      const lines = this.visible, box = { left: 58, right: this.width - 26, top: 22,
        bottom: this.height - 42 };
      const flat = (key) => lines.flatMap((line) => line[key] || line.y)
        .filter((value) => value !== null && value !== undefined);
      const xs = lines.flatMap((line) => line[this.axis] || []).filter((value) => value !== null);
      let low = Math.min(...flat("lo")), high = Math.max(...flat("hi"));
      const goal = this.goal ? parseFloat(this.goal.value) : NaN;
      if (!Number.isNaN(goal)) { low = Math.min(low, goal); high = Math.max(high, goal); }
      if (!Number.isFinite(low)) { low = 0; high = 1; }
      if (low === high) { low -= Math.abs(low) * 0.1; high += Math.abs(high) * 0.1 || 1; }
      [low, high] = span(low, high, 5);
      const end = Math.max(...xs, 1e-9);
      this.px = (x) => box.left + (box.right - box.left) * x / end;
      this.py = (y) => box.bottom - (box.bottom - box.top) * (y - low) / (high - low);
      for (const y of ticks(low, high, 5)) {
        this.rule(box.left, this.py(y), box.right, this.py(y));
        this.write(box.left - 8, this.py(y) + 4, plain(y), "end");
      }
      const unit = this.axis === "x" ? 1 : 60; // times have their ticks at round minutes
      for (const x of ticks(0, end / unit, this.width / 130).map((tick) => tick * unit)) {
        this.rule(this.px(x), box.bottom, this.px(x), box.bottom + 5);
        this.write(this.px(x), box.bottom + 18, this.axis === "x" ? plain(x) : clock(x), "middle");
      }
      this.write(box.left, 12, this.plot.unit, "start");
      this.write(box.right, this.height - 6, this.axis === "x" ? "step" : "time", "end");
      lines.forEach((line) => this.drawLine(line));
      if (!Number.isNaN(goal)) this.rule(box.left, this.py(goal), box.right, this.py(goal))
        .style.stroke = "var(--text)";
      this.answer.textContent = Number.isNaN(goal) ? "" : this.reach(goal);
      this.box = box;
      this.svg.onpointermove = (event) => this.hover(this.position(event)[0]);
      this.svg.setAttribute("tabindex", 0);
      this.svg.onkeydown = (event) => this.walk(event);
    }

    drawLine(line) {
      const { color, dash } = style(line.color), xs = line[this.axis] || [];
      const known = xs.map((x, n) => n).filter((n) => xs[n] !== null && line.y[n] !== null);
      const at = (n, values) => `${this.px(xs[n]).toFixed(1)},${this.py(values[n]).toFixed(1)}`;
      if (line.lo && known.length > 1) {
        const band = [...known.map((n) => at(n, line.hi)),
          ...known.slice().reverse().map((n) => at(n, line.lo))];
        add(this.svg, "polygon", { points: band.join(" "), fill: color, opacity: 0.15 });
      }
      if (known.length === 1) {
        const [x, y] = at(known[0], line.y).split(",");
        add(this.svg, "circle", { cx: x, cy: y, r: 4, fill: color, class: "curve" });
      } else if (known.length) {
        add(this.svg, "polyline", { points: known.map((n) => at(n, line.y)).join(" "),
          fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dash, class: "curve" });
      }
    }

    reach(goal) {
      const steps = this.visible.map((line) => {
        const n = line.y.findIndex((y) => y !== null && y >= goal);
        const time = n >= 0 && line.t && line.t[n] !== null ? ` (${clock(line.t[n])})` : "";
        return `${line.name}: ${n < 0 ? "not reached" : `step ${plain(line.x[n])}${time}`}`;
      });
      return `${goal} % is reached, by the mean curve: ${steps.join("; ")}`;
    }

    position(event) { // of the pointer, in the coordinates of the SVG
      const box = this.svg.getBoundingClientRect();
      return [(event.clientX - box.left) * this.width / box.width,
        (event.clientY - box.top) * this.height / box.height];
    }

    hover(px) {
      const all = this.visible.flatMap((line) => line[this.axis] || []).filter((x) => x !== null);
      if (!all.length) return;
      const nearest = (xs) => xs.reduce((best, x, n) => x !== null
        && (best < 0 || Math.abs(this.px(x) - px) < Math.abs(this.px(xs[best]) - px)) ? n : best, -1);
      this.x = all[nearest(all)];
      px = this.px(this.x);
      this.marks?.remove();
      this.marks = add(this.svg, "g", { class: "marks" });
      add(this.marks, "line", { x1: px, x2: px, y1: this.box.top, y2: this.box.bottom,
        style: "stroke: var(--soft)" });
      const rows = [];
      for (const line of this.visible) {
        const n = nearest(line[this.axis] || []);
        if (n < 0 || line.y[n] === null || Math.abs(this.px(line[this.axis][n]) - px) > 12) continue;
        const { color } = style(line.color);
        add(this.marks, "circle", { cx: this.px(line[this.axis][n]), cy: this.py(line.y[n]), r: 3.5,
          fill: color });
        const span = line.lo ? ` (${plain(line.lo[n])} to ${plain(line.hi[n])})` : "";
        rows.push([line.y[n], `${line.name}: ${plain(line.y[n])}${span}`, color]);
      }
      rows.sort((a, b) => b[0] - a[0]);
      const head = this.axis === "x" ? `step ${plain(this.x)}` : clock(this.x);
      this.showTip(px, this.box.top, head, rows.map(([, text, color]) => [text, color]));
    }

    walk(event) {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      const xs = [...new Set(this.visible.flatMap((line) => line[this.axis] || []))]
        .filter((x) => x !== null).sort((a, b) => a - b);
      const n = xs.indexOf(this.x);
      this.hover(this.px(xs[Math.min(xs.length - 1, Math.max(0, n < 0 ? 0 : n + direction))]));
    }

    showTip(px, py, head, rows) { showTip(this.tip, this.width, px, py, head, rows); }

    leave() {
      this.tip.hidden = true;
      this.marks?.remove();
    }

    get groups() {
      return [...new Set((this.choice.bars || []).map((bar) => bar.group))];
    }

    drawLegend() {
      this.legend.replaceChildren();
      const names = this.plot.kind === "lines" ? this.lines.map((line) => line.name)
        : this.groups.filter((name) => name);
      names.forEach((name, n) => {
        const shown = !this.hidden.has(name);
        const button = add(this.legend, "button", { type: "button", "aria-pressed": shown });
        const { color, dash } = style(
          this.plot.kind === "lines" ? this.colorIndex(name) : this.groups.indexOf(name));
        add(button, "i").style.background = !dash ? color
          : `repeating-linear-gradient(90deg, ${color} 0 5px, transparent 5px 8px)`;
        add(button, "span", {}, name);
        button.onclick = () => {
          if (shown) this.hidden.add(name); else this.hidden.delete(name);
          this.draw();
          this.legend.children[n].focus();
        };
      });
    }

    save() {
      this.leave();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([standalone(this.svg)], { type: "image/svg+xml" }));
      link.download = `${this.plot.id}-${this.choice.name}`.replace(/[^\w.=-]+/g, "-") + ".svg";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }
  }

  const drawn = [...document.querySelectorAll("section.plot")].map((section) => new Plot(section));
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawn.forEach((plot) => plot.draw());
  });
})();
