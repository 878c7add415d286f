"use strict";
// Small parts that every plot needs: elements, numbers, colors and ticks.
const parts = (() => {
  const COLORS = ["#3b82c4", "#d9730d", "#2f9e6b", "#c2478f", "#8a63d2", "#b8860b", "#17a2b8",
    "#d64545", "#6b8e23", "#7a7f87"];
  const TIP_LINES = 14;
  const DASHES = ["", "7 3", "2 3"];

  function add(parent, name, attributes = {}, text = null) {
    const svg = parent instanceof SVGElement || name === "svg";
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    parent.append(made);
    return made;
  }

  const plain = (value) => value === null || value === undefined ? "-"
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(4)));
  const clock = (seconds) => {
    const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}`
      : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  };
  const style = (index) => ({ color: COLORS[index % COLORS.length],
    dash: DASHES[Math.floor(index / COLORS.length) % DASHES.length] });

  function pace(low, high, wanted) { // returns a round distance between two ticks
    const raw = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * (1 - 1e-9));
  }

  // Widen a range so that it begins and ends at a tick.
  function span(low, high, wanted) {
    const step = pace(low, high, wanted);
    return [step * Math.floor(low / step + 1e-9), step * Math.ceil(high / step - 1e-9)];
  }

  function ticks(low, high, wanted) {
    const step = pace(low, high, wanted), found = [];
    for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found;
  }

  // Show a box of text beside a point, on the side where there is room.
  function showTip(tip, width, px, py, head, rows) {
    tip.replaceChildren();
    add(tip, "b", {}, head);
    for (const [text, color] of rows.slice(0, TIP_LINES)) {
      const row = add(tip, "div", {}, text);
      if (color) row.style.borderLeft = `4px solid ${color}`;
      row.style.paddingLeft = "6px";
    }
    if (rows.length > TIP_LINES) add(tip, "div", {}, `and ${rows.length - TIP_LINES} more`);
    tip.hidden = false;
    const wide = tip.offsetWidth;
    const left = px + 14 + wide < width ? px + 14 : Math.max(0, px - 14 - wide);
    tip.style.transform = `translate(${left}px, ${py}px)`;
  }

  // Return the text of an SVG that needs no style sheet: the page's colors are written out.
  function standalone(svg) {
    const look = getComputedStyle(document.documentElement);
    const copy = svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    return new XMLSerializer().serializeToString(copy)
      .replace(/var\((--[a-z]+)\)/g, (whole, name) => look.getPropertyValue(name).trim());
  }

  return { add, plain, clock, style, span, ticks, showTip, standalone, COLORS };
})();
