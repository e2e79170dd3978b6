// The parts of the page together, and what can be done with them.

import { Chart } from "./chart";
import { get } from "./dom";
import { Icicle } from "./icicle";
import { LaneBar } from "./lanebar";
import { BLOCK } from "./lanes";
import { nextFailed, nextFound, search } from "./search";
import { State } from "./state";
import { Steps } from "./steps";
import { ModuleTable } from "./table";
import { Timeline } from "./timeline";
import type { Trace } from "./trace";
import { neighbour, type Way } from "./walk";

/** The least that is shown at once. */
const NARROWEST_NS = 200;

export class App {
    readonly state: State;
    readonly timeline: Timeline;
    readonly chart: Chart;
    readonly icicle: Icicle;
    readonly paths: Chart;
    readonly lanes: LaneBar;
    readonly steps: Steps;
    readonly modules: ModuleTable;

    constructor(readonly trace: Trace) {
        this.state = new State(trace);
        this.timeline = new Timeline(this.state);
        this.chart = new Chart(get("timeline"), this.timeline, BLOCK, NARROWEST_NS);
        this.icicle = new Icicle(this.state);
        this.paths = new Chart(get("icicle"), this.icicle, BLOCK, NARROWEST_NS);
        this.lanes = new LaneBar(this.state, this.timeline, () => this.chart.redraw());
        this.steps = new Steps(this.state, (period) => this.showPeriod(period));
        this.modules = new ModuleTable(this.state, (row) => {
            this.find(`"${row.label}"`);
            this.go(row.longest);
        });
    }

    /** Select a span and show it; nothing for -1. */
    go(span: number): void {
        if (span < 0) return;
        const { trace, state } = this;
        const period = trace.period[span]!;
        // Who has chosen a step sees the step that the span is in.
        if (state.scope.period >= 0 && period >= 0 && period !== state.scope.period) {
            state.setScope({ period });
        }
        state.select(span);
        this.show(span);
    }

    /** Bring a span into view, in time and from above or below. */
    private show(span: number): void {
        const { trace, chart, timeline } = this;
        const [from, until] = chart.view;
        const [start, end] = [trace.start[span]!, trace.end[span]!];
        const size = end - start;
        const isSeen = start >= from && end <= until && size > (until - from) / 300;
        if (!isSeen) chart.setView(start - size, end + size);
        this.lanes.unfoldFor(span);
        timeline.reveal(timeline.lanes.topOf(span), BLOCK);
        chart.redraw();
    }

    /** Show a step on all ranks, and sum it up; -1 for all steps. */
    showPeriod(index: number): void {
        this.state.setScope({ period: index });
        const period = this.trace.periods[index];
        if (period === undefined) {
            this.chart.fit();
            return;
        }
        const margin = (period.end - period.start) * 0.02;
        this.chart.setView(period.start - margin, period.end + margin);
    }

    find(query: string): void {
        get<HTMLInputElement>("search").value = query;
        search(this.state, query);
    }

    /** Go to the next of what is found: from the selected span on, or else from the view on. */
    goFound(way: 1 | -1): void {
        const [from] = this.chart.view;
        const { selected } = this.state;
        const before = this.trace.start.findIndex((start) => start >= from) - way;
        this.go(nextFound(this.state, selected < 0 ? before : selected, way));
    }

    goFailed(): void {
        this.go(nextFailed(this.state, this.state.selected));
    }

    /** Go along the first link, in whichever direction it points. */
    goLinked(): void {
        const { trace, state } = this;
        if (state.selected < 0) return;
        const targets = trace.linksOf(state.selected).map((link) => link.target);
        const linked = [...targets, ...trace.linkedFrom(state.selected)];
        this.go(linked.find((span) => span >= 0) ?? -1);
    }

    /** Go to a span beside the selected one; to the first root in view, if there is none. */
    walk(way: Way): void {
        const { trace, state } = this;
        if (state.selected >= 0) {
            this.go(neighbour(state, this.timeline.lanes, way));
            return;
        }
        const [from] = this.chart.view;
        const isFirst = (start: number, span: number) => start >= from && trace.parent[span]! < 0;
        this.go(trace.count ? Math.max(0, trace.start.findIndex(isFirst)) : -1);
    }

    zoomToSelected(): void {
        const { trace, state } = this;
        if (state.selected < 0) return;
        const margin = trace.duration[state.selected]! * 0.05;
        this.chart.setView(
            trace.start[state.selected]! - margin,
            trace.end[state.selected]! + margin,
        );
    }

    /** Find the icicle's block in the timeline. */
    findPath(): void {
        const node = this.icicle.selected;
        if (node === null) return;
        this.find(`"${node.name}"`);
        this.go(node.longest);
    }

    /** Forget the search; without one, the selection. */
    leave(): void {
        if (this.state.query) this.find("");
        else this.state.select(-1);
        if (document.activeElement === get("search")) get("timeline").focus();
    }

    setTheme(theme: "light" | "dark"): void {
        this.state.theme = theme;
        this.state.tell("theme");
    }

    switchTheme(): void {
        this.setTheme(this.state.theme === "dark" ? "light" : "dark");
    }
}
