// flame-chart-js as it comes: its own flame chart, one for each rank, given all spans.

import { FlameChartContainer, FlameChartPlugin, TimeGridPlugin } from "flame-chart-js";
import { COLOURS, makeSpans } from "./spans.mjs";

const spans = makeSpans(Number(new URLSearchParams(location.search).get("n")));
const started = performance.now();
const nodes = spans.map(({ name, start, duration, kind }) => ({
    name,
    start,
    duration,
    color: COLOURS[kind],
    children: [],
}));
const roots = [[], []];
spans.forEach(({ parent, rank }, index) => {
    (parent < 0 ? roots[rank] : nodes[parent].children).push(nodes[index]);
});
const canvas = document.createElement("canvas");
canvas.width = 1280;
canvas.height = 640;
document.querySelector("#host").append(canvas);
const charts = roots.map((data, rank) => new FlameChartPlugin({ data, name: `rank ${rank}` }));
new FlameChartContainer({ canvas, plugins: [new TimeGridPlugin(), ...charts] });
requestAnimationFrame(() =>
    requestAnimationFrame(() => (window.firstPicture = performance.now() - started)),
);
