// The lanes' headers: buttons over the canvas that fold a lane, and the scroll bar beside it.

import { get, make } from "./dom";
import { plural } from "./format";
import { HEADER, type Lane } from "./lanes";
import type { State } from "./state";
import { AXIS, type Timeline } from "./timeline";

export class LaneBar {
    private readonly buttons: HTMLButtonElement[];
    private readonly host = get("lanes");
    private readonly bar = get("scroll");

    constructor(
        private readonly state: State,
        private readonly timeline: Timeline,
        private readonly redraw: () => void,
    ) {
        this.host.style.top = `${AXIS}px`;
        this.bar.style.top = `${AXIS}px`;
        this.buttons = timeline.lanes.all.map((lane) => {
            const button = make("button", { type: "button", class: "lane" });
            button.addEventListener("click", () => {
                this.fold([lane], !lane.isFolded);
            });
            return button;
        });
        this.host.replaceChildren(...this.buttons);
        this.bar.addEventListener("scroll", () => {
            if (Math.abs(this.bar.scrollTop - timeline.scrollTop) < 1) return;
            timeline.scrollTop = this.bar.scrollTop;
            this.place();
            redraw();
        });
        timeline.onScroll = () => this.place();
        new ResizeObserver(() => {
            timeline.scroll(0);
            redraw();
        }).observe(this.host);
        this.place();
    }

    /** Unfold a span's lane, if it must be for the span to be seen. */
    unfoldFor(span: number): void {
        const { lanes } = this.timeline;
        if (!lanes.isShown(span)) this.fold([lanes.all[this.state.trace.process[span]!]!], false);
    }

    /** Fold all lanes, or unfold them if one is folded. */
    foldAll(): void {
        const { all } = this.timeline.lanes;
        this.fold(all, !all.some((lane) => lane.isFolded));
    }

    private fold(lanes: readonly Lane[], isFolded: boolean): void {
        for (const lane of lanes) lane.isFolded = isFolded;
        this.timeline.lanes.stack();
        this.timeline.scroll(0);
        this.redraw();
    }

    private place(): void {
        const { lanes, scrollTop } = this.timeline;
        lanes.all.forEach((lane, index) => {
            const button = this.buttons[index]!;
            button.textContent = `${lane.isFolded ? "▸" : "▾"} ${this.name(index)}`;
            button.setAttribute("aria-expanded", String(!lane.isFolded));
            button.style.height = `${HEADER}px`;
            button.title = lane.isFolded ? "Show all rows" : "Show the first row only";
            button.style.transform = `translateY(${lane.top - scrollTop}px)`;
        });
        const inner = this.bar.firstElementChild as HTMLElement;
        inner.style.height = `${lanes.height}px`;
        this.bar.scrollTop = scrollTop;
    }

    private name(index: number): string {
        const { count } = this.timeline.lanes.all[index]!;
        return `${this.state.trace.processName(index)} · ${plural(count, "span")}`;
    }
}
