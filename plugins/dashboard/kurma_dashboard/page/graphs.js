// Small graphs: a line and the area below it, drawn as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 30;

export class Graph {
  /** @param kinds of the lines: cpu, memory, received, sent. @param samples of the whole width. */
  constructor(label, kinds, samples) {
    this.samples = samples;
    this.label = label;
    this.element = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({
      class: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label,
    })) this.element.setAttribute(name, value);
    this.lines = kinds.map((kind) => {
      const group = document.createElementNS(SVG, "g");
      group.setAttribute("class", kind);
      const paths = ["area", "line"].map((name) => {
        const path = document.createElementNS(SVG, "path");
        path.setAttribute("class", name);
        group.append(path);
        return path;
      });
      this.element.append(group);
      return paths;
    });
  }

  /** @param rows a list of numbers for each line, the newest last. @param least height of the scale. */
  draw(rows, least, said) {
    const most = Math.max(least, ...rows.flat().filter((value) => value !== null)) * 1.1;
    rows.forEach((values, index) => {
      const shown = values.slice(-this.samples);
      const step = WIDTH / (this.samples - 1);
      const from = WIDTH - (shown.length - 1) * step;
      const points = shown
        .map((value, at) => (value === null ? null : [from + at * step, HEIGHT - 1 - (value / most) * (HEIGHT - 2)]))
        .filter((point) => point !== null)
        .map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`);
      const [area, line] = this.lines[index];
      if (points.length < 2) {
        area.setAttribute("d", "");
        line.setAttribute("d", "");
        return;
      }
      const drawn = `M${points.join("L")}`;
      line.setAttribute("d", drawn);
      area.setAttribute("d", `${drawn}L${points.at(-1).split(" ")[0]} ${HEIGHT}L${points[0].split(" ")[0]} ${HEIGHT}Z`);
    });
    this.element.setAttribute("aria-label", `${this.label}: ${said}`);
  }
}

/** A card with a title, a value and a graph. */
export class Tile {
  constructor(title, kinds, samples, tall = false) {
    this.graph = new Graph(title, kinds, samples);
    this.value = document.createElement("div");
    this.more = document.createElement("div");
    this.element = document.createElement("div");
    const what = document.createElement("div");
    this.element.className = tall ? "card tile tall" : "card tile";
    [what.className, this.value.className, this.more.className] = ["what", "value", "more"];
    what.textContent = title;
    this.element.append(what, this.value, this.more, this.graph.element);
  }

  draw(value, more, rows, least) {
    this.value.textContent = value;
    this.more.textContent = more;
    this.graph.draw(rows, least, value);
  }
}
