// A canvas that is zoomed and panned: what the timeline and the icicle have in common.
//
// flame-chart-js owns the canvas, its layers, dragging, the queue of rectangles and texts, and
// when to draw. What is drawn is decided here: the library's own flame chart draws every node it
// is given, and overlapping ones over each other (see benchmarks/README.md).

import { FlameChartContainer, UIPlugin } from "flame-chart-js";
import { drawTile, INK, KINDS } from "./kinds";
import { FONT, PALETTES, type Palette } from "./theme";

export interface Point {
    readonly x: number;
    readonly y: number;
}

/** What a chart shows. */
export abstract class Pane extends UIPlugin {
    readonly height = "flexible";
    palette: Palette = PALETTES.light;
    private isDragged = false;

    /** Draw everything; called at most once a frame. */
    abstract draw(): void;
    abstract click(at: Point): void;
    /** The mouse is there; null: it has left. */
    abstract hover(at: Point | null): void;
    abstract scroll(pixels: number): void;

    override init(...engines: Parameters<UIPlugin["init"]>): void {
        super.init(...engines);
        const interactions = this.interactionsEngine;
        interactions.on("change-position", (by: { deltaX: number; deltaY: number }) => {
            this.hover(null);
            this.renderEngine.tryToChangePosition(by.deltaX);
            this.scroll(by.deltaY);
            this.renderEngine.parent.render();
        });
        interactions.on("up", () => (this.isDragged = false));
        interactions.on("click", () => this.click(interactions.getMouse()));
        interactions.on("move", () => {
            if (!this.isDragged) this.hover(interactions.getMouse());
        });
    }

    override render(): true {
        this.draw();
        return true; // and the library adds nothing, as a time grid
    }

    /** Where a moment is, in pixels. */
    at(time: number): number {
        return this.renderEngine.timeToPosition(time);
    }

    /** Queue a block of one kind. */
    block(kind: number, x: number, y: number, width: number, isDim: boolean): void {
        if (isDim) {
            this.renderEngine.addRect({ color: this.palette.dim, x, y, w: width });
            return;
        }
        const pattern = width >= 4 && KINDS[kind]!.pattern !== "plain" ? KINDS[kind]!.word : "none";
        this.renderEngine.addRect({ color: KINDS[kind]!.colour, pattern, x, y, w: width });
    }

    /** Frame what is selected: seen on every colour. */
    frame(x: number, y: number, width: number, height: number): void {
        const { ctx } = this.renderEngine;
        for (const [colour, size] of [
            [this.palette.halo, 4],
            [this.palette.frame, 2],
        ] as const) {
            ctx.strokeStyle = colour;
            ctx.lineWidth = size;
            ctx.setLineDash([]);
            ctx.strokeRect(x, y, Math.max(width, 3), height);
        }
        ctx.lineWidth = 1;
    }
}

/** A pane in a host element, and what part of it is seen. */
export class Chart {
    readonly canvas = document.createElement("canvas");
    private readonly container: FlameChartContainer;

    /**
     * @param host An element with a size of its own.
     * @param pane What is shown.
     * @param blockHeight Of a row, in pixels.
     * @param narrowest The least that may be seen, in the pane's unit.
     */
    constructor(
        private readonly host: HTMLElement,
        private readonly pane: Pane,
        private readonly blockHeight: number,
        private readonly narrowest: number,
    ) {
        this.canvas.setAttribute("aria-hidden", "true");
        host.prepend(this.canvas);
        this.container = new FlameChartContainer({
            canvas: this.canvas,
            plugins: [pane],
            settings: { options: { tooltip: false } },
        });
        new ResizeObserver(() => this.resize()).observe(host);
        this.canvas.addEventListener("mouseleave", () => pane.hover(null));
        host.addEventListener("wheel", (event) => this.wheel(event), {
            capture: true,
            passive: false,
        });
        this.resize();
        this.watchResolution();
    }

    private get engine(): FlameChartContainer["renderEngine"] {
        return this.container.renderEngine;
    }

    get view(): readonly [number, number] {
        return [this.engine.positionX, this.engine.positionX + this.engine.getRealView()];
    }

    /** Show from start to end, or what comes nearest. */
    setView(start: number, end: number): void {
        const { min, max, width } = this.engine;
        const size = Math.min(Math.max(end - start, this.narrowest), max - min);
        const middle = (start + end) / 2;
        const first = Math.min(Math.max(middle - size / 2, min), max - size);
        this.engine.setZoom(width / size);
        this.engine.setPositionX(first);
        this.redraw();
    }

    /** Show `factor` times as much. What is at the fraction of the width stays there. */
    zoom(factor: number, fraction = 0.5): void {
        const [start, end] = this.view;
        const size = Math.max((end - start) * factor, this.narrowest);
        const fixed = start + fraction * (end - start);
        const from = fixed - fraction * size;
        this.setView(from, from + size);
    }

    /** Move by a part of what is seen. */
    pan(fraction: number): void {
        const [start, end] = this.view;
        const by = fraction * (end - start);
        this.setView(start + by, end + by);
    }

    fit(): void {
        this.setView(this.engine.min, this.engine.max);
    }

    /** Draw in the next frame. */
    redraw(): void {
        this.container.render();
    }

    /** The pane's extent has changed. */
    measure(): void {
        this.engine.calcMinMax();
    }

    setPalette(palette: Palette): void {
        this.pane.palette = palette;
        const scale = this.engine.pixelRatio;
        this.container.setSettings({
            options: { tooltip: false },
            styles: {
                main: {
                    blockHeight: this.blockHeight,
                    blockPaddingLeftRight: 5,
                    backgroundColor: palette.background,
                    font: FONT,
                    fontColor: INK,
                },
            },
            patterns: KINDS.map((kind) => ({
                name: kind.word,
                creator: (engine) => {
                    const tile = drawTile(kind, scale);
                    const pattern = engine.ctx.createPattern(tile, "repeat")!;
                    return { pattern, width: tile.width, scale: tile.width / 8 };
                },
            })),
        });
        this.redraw();
    }

    private resize(): void {
        const { clientWidth, clientHeight } = this.host;
        if (!clientWidth || !clientHeight) return; // hidden
        const view = this.view;
        this.engine.resize(clientWidth, clientHeight);
        this.setView(...view);
    }

    private watchResolution(): void {
        const ratio = window.devicePixelRatio;
        matchMedia(`(resolution: ${ratio}dppx)`).addEventListener(
            "change",
            () => {
                for (const engine of [this.engine, ...this.engine.children]) {
                    engine.pixelRatio = window.devicePixelRatio;
                    engine.applyCanvasSize();
                }
                this.setPalette(this.pane.palette);
                this.watchResolution();
            },
            { once: true },
        );
    }

    /** The wheel zooms at the pointer, pans sideways, and with shift scrolls. */
    private wheel(event: WheelEvent): void {
        event.preventDefault();
        event.stopPropagation();
        const line = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
        const [x, y] = [event.deltaX * line, event.deltaY * line];
        this.pane.hover(null);
        if (event.shiftKey) {
            this.pane.scroll(y || x);
            this.redraw();
        } else if (Math.abs(x) > Math.abs(y)) {
            this.pan(x / this.host.clientWidth);
        } else {
            const box = this.canvas.getBoundingClientRect();
            const notches = Math.max(-3, Math.min(3, y / 100));
            this.zoom(1.25 ** notches, (event.clientX - box.left) / box.width);
        }
    }
}
