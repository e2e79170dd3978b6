// echarts: a custom series, which is what its documentation has for profiles.

import { CustomChart } from "echarts/charts";
import { DataZoomComponent, GridComponent } from "echarts/components";
import * as echarts from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";
import { COLOURS, makeSpans } from "./spans.mjs";

const spans = makeSpans(Number(new URLSearchParams(location.search).get("n")));
const started = performance.now();
echarts.use([CustomChart, GridComponent, DataZoomComponent, CanvasRenderer]);
const host = document.querySelector("#host");
host.style.width = "1280px";
host.style.height = "640px";
echarts.init(host).setOption({
    animation: false,
    xAxis: { type: "value" },
    yAxis: { type: "value", inverse: true, max: 12 },
    dataZoom: [{ type: "inside", throttle: 0, filterMode: "weakFilter" }],
    series: [
        {
            type: "custom",
            data: spans.map(({ start, duration, rank, row }) => [
                start,
                start + duration,
                rank * 6 + row,
            ]),
            encode: { x: [0, 1], y: 2 },
            clip: true,
            progressive: 0, // or the first picture is a part of it
            renderItem(params, api) {
                const [x, y] = api.coord([api.value(0), api.value(2)]);
                const width = Math.max(0.3, api.coord([api.value(1), 0])[0] - x);
                const { name, kind } = spans[params.dataIndex];
                return {
                    type: "rect",
                    shape: { x, y, width, height: 16 },
                    style: { fill: COLOURS[kind] },
                    ...(width > 30 && {
                        textContent: { style: { text: name, width, overflow: "truncate" } },
                    }),
                };
            },
        },
    ],
});
requestAnimationFrame(() =>
    requestAnimationFrame(() => (window.firstPicture = performance.now() - started)),
);
