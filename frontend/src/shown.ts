// What follows the state: each part of the page shows what has been chosen.

import type { App } from "./app";
import { showDetails } from "./details";
import { get } from "./dom";
import { count, duration } from "./format";
import { placeOf } from "./search";
import { PALETTES } from "./theme";
import { tellSpot } from "./spot";
import { tooltip } from "./tooltip";

export function follow(app: App): void {
    const { state } = app;
    state.on(["selected"], () => showSelected(app));
    state.on(["selected", "search"], () => {
        showFound(app);
        app.chart.redraw();
    });
    state.on(["scope"], () => showScope(app));
    state.on(["theme"], () => {
        document.documentElement.dataset["theme"] = state.theme;
        app.chart.setPalette(PALETTES[state.theme]);
        app.paths.setPalette(PALETTES[state.theme]);
    });
    app.timeline.onHover = (spot) => {
        const lines = spot === null ? [] : tellSpot(state, spot);
        tooltip(get("timeline"), spot?.at ?? { x: 0, y: 0 }, lines);
    };
    app.icicle.onHover = (node, at) => {
        tooltip(get("icicle"), at, node === null ? [] : app.icicle.tell(node));
    };
    app.icicle.onSelect = (node) => {
        app.paths.setView(node.left, node.left + node.width);
        get("path").textContent = app.icicle.tell(node).join(" · ");
    };
}

function showSelected(app: App): void {
    const { trace, state } = app;
    const span = state.selected;
    showDetails(get("details"), state, (to) => app.go(to));
    const said = (span: number) => [
        trace.labelOf(span),
        duration(trace.duration[span]!),
        trace.processes[trace.process[span]!]!.label,
    ];
    get("said").textContent = span < 0 ? "" : said(span).join(", ");
}

/** `3 of 120`; without a found span selected `120 found`. */
function showFound({ state }: App): void {
    const place = placeOf(state, state.selected);
    const all = count(state.foundCount);
    const text = place ? `${count(place)} of ${all}` : `${all} found`;
    get("found").textContent = state.found === null ? "" : text;
    for (const id of ["find-previous", "find-next"]) {
        get<HTMLButtonElement>(id).disabled = state.foundCount === 0;
    }
}

function showScope(app: App): void {
    const { trace, state } = app;
    const chosen = trace.periods[state.scope.period];
    const what = trace.hasSteps ? "step" : "trace";
    get("scope").textContent = chosen ? `${what} ${chosen.label}` : `all ${what}s`;
    app.icicle.sum();
    app.paths.measure();
    app.paths.fit();
    get("path").textContent = "Click a block to look into it.";
    app.modules.sum();
}
