// The steps: a list to choose from, and how long each took.

import { get, make } from "./dom";
import { duration } from "./format";
import type { State } from "./state";
import { PALETTES } from "./theme";

export class Steps {
    private readonly list = get<HTMLSelectElement>("step");
    private readonly bars = get<HTMLCanvasElement>("step-bars");
    private readonly longest: number;

    /** @param show Called with the period that is chosen; -1 for all. */
    constructor(
        private readonly state: State,
        private readonly show: (period: number) => void,
    ) {
        const { periods, hasSteps } = state.trace;
        this.longest = periods.reduce((most, { duration }) => Math.max(most, duration), 1);
        const what = hasSteps ? "step" : "trace";
        this.list.append(make("option", { value: "-1" }, `All ${what}s (${periods.length})`));
        periods.forEach(({ label, duration: took }, period) => {
            const text = `${what} ${label}, ${duration(took)}`;
            this.list.append(make("option", { value: String(period) }, text));
        });
        this.list.addEventListener("change", () => this.choose(Number(this.list.value)));
        get("step-previous").addEventListener("click", () => this.move(-1));
        get("step-next").addEventListener("click", () => this.move(1));
        this.bars.addEventListener("click", (event) => {
            this.choose(Math.floor(event.offsetX / this.pitch()));
        });
        this.bars.addEventListener("keydown", (event) => this.press(event));
        this.bars.setAttribute("aria-valuemax", String(periods.length - 1));
        new ResizeObserver(() => this.draw()).observe(this.bars);
        state.on(["scope", "theme"], () => this.draw());
    }

    /** Go to the step before or after. */
    move(by: number): void {
        const { period } = this.state.scope;
        const from = period < 0 && by < 0 ? this.state.trace.periods.length : period;
        this.choose(from + by);
    }

    /** Of the bars, in pixels. */
    private pitch(): number {
        return Math.min(20, this.bars.clientWidth / Math.max(1, this.state.trace.periods.length));
    }

    private choose(period: number): void {
        if (period >= this.state.trace.periods.length || period < -1) return;
        this.show(period);
    }

    private press(event: KeyboardEvent): void {
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        const to = { Home: 0, End: this.state.trace.periods.length - 1 }[event.key];
        if (by === undefined && to === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        if (by !== undefined) this.move(by);
        else this.choose(to!);
    }

    private draw(): void {
        const { periods, hasSteps } = this.state.trace;
        const { period } = this.state.scope;
        const palette = PALETTES[this.state.theme];
        this.list.value = String(period);
        this.bars.setAttribute("aria-valuenow", String(period));
        const chosen = periods[period];
        const what = hasSteps ? "step" : "trace";
        this.bars.setAttribute(
            "aria-valuetext",
            chosen ? `${what} ${chosen.label}, ${duration(chosen.duration)}` : `all ${what}s`,
        );
        const { clientWidth: width, clientHeight: height } = this.bars;
        const ratio = window.devicePixelRatio;
        this.bars.width = width * ratio;
        this.bars.height = height * ratio;
        const ctx = this.bars.getContext("2d")!;
        ctx.scale(ratio, ratio);
        const pitch = this.pitch();
        periods.forEach(({ duration: took }, index) => {
            const tall = Math.max(2, (took / this.longest) * (height - 4));
            ctx.fillStyle = index === period ? palette.accent : palette.faint;
            ctx.globalAlpha = index === period ? 1 : 0.55;
            const wide = Math.max(1, pitch - 1);
            ctx.fillRect(index * pitch, height - tall, wide, tall);
            // Told apart otherwise than by colour, too.
            if (index === period) ctx.fillRect(index * pitch, 0, Math.max(3, wide), 2);
        });
    }
}
