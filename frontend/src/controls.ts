// The buttons, fields and keys of the page.

import type { App } from "./app";
import type { Chart } from "./chart";
import { get } from "./dom";
import { listen } from "./keys";
import { search } from "./search";

const TABS = ["icicle", "modules"];
const ZOOM = 1.5;

export function connect(app: App): void {
    connectButtons(app);
    connectSearch(app);
    connectTabs();
    connectProcesses(app);
    focusOnClick(app.chart, "timeline");
    focusOnClick(app.paths, "icicle");
    const help = get<HTMLDialogElement>("help");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => app.setTheme(dark.matches ? "dark" : "light"));
    listen({
        zoomIn: () => app.chart.zoom(1 / ZOOM),
        zoomOut: () => app.chart.zoom(ZOOM),
        pan: (fraction) => app.chart.pan(fraction),
        scroll: (pages) => {
            app.timeline.scroll(pages * get("timeline").clientHeight);
            app.chart.redraw();
        },
        fit: () => app.chart.fit(),
        walk: (way) => app.walk(way),
        walkIcicle: (way) => app.icicle.step(way),
        findPath: () => app.findPath(),
        zoomToSelected: () => app.zoomToSelected(),
        showSelected: () => get("details").focus(),
        goFound: (way) => app.goFound(way),
        goFailed: () => app.goFailed(),
        goLinked: () => app.goLinked(),
        step: (by) => app.steps.move(by),
        fold: () => app.lanes.foldAll(),
        theme: () => app.switchTheme(),
        leave: () => app.leave(),
        help: () => help.showModal(),
    });
}

function connectButtons(app: App): void {
    const acts: Record<string, () => void> = {
        theme: () => app.switchTheme(),
        "show-help": () => get<HTMLDialogElement>("help").showModal(),
        "zoom-in": () => app.chart.zoom(1 / ZOOM),
        "zoom-out": () => app.chart.zoom(ZOOM),
        fit: () => app.chart.fit(),
        "find-next": () => app.goFound(1),
        "find-previous": () => app.goFound(-1),
        "icicle-all": () => app.paths.fit(),
        "icicle-find": () => app.findPath(),
    };
    for (const [id, act] of Object.entries(acts)) get(id).addEventListener("click", act);
}

function connectSearch(app: App): void {
    const field = get<HTMLInputElement>("search");
    field.addEventListener("input", () => search(app.state, field.value));
    field.addEventListener("keydown", (event) => {
        if (event.key === "Enter") app.goFound(event.shiftKey ? -1 : 1);
    });
}

function connectTabs(): void {
    const open = (tab: string) => {
        for (const other of TABS) {
            get(`tab-${other}`).setAttribute("aria-selected", String(other === tab));
            get(`panel-${other}`).hidden = other !== tab;
        }
    };
    TABS.forEach((tab, index) => {
        get(`tab-${tab}`).addEventListener("click", () => open(tab));
        get(`tab-${tab}`).addEventListener("keydown", (event) => {
            if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
            const other = TABS[1 - index]!;
            open(other);
            get(`tab-${other}`).focus();
        });
    });
}

function connectProcesses(app: App): void {
    const list = get<HTMLSelectElement>("process");
    const { processes } = app.trace;
    processes.forEach(({ label }, index) => {
        const isDouble = processes.filter((other) => other.label === label).length > 1;
        const name = isDouble ? app.trace.processName(index) : label;
        list.append(new Option(name, String(index)));
    });
    list.addEventListener("change", () => app.state.setScope({ process: Number(list.value) }));
}

/** The keys go to the chart that was clicked. */
function focusOnClick(chart: Chart, id: string): void {
    chart.canvas.addEventListener("mousedown", () => get(id).focus({ preventScroll: true }));
}
