// What spans are told apart as: by colour, by pattern and by letter.

export const OTHER = 0;
export const STEP = 1;
export const FORWARD = 2;
export const BACKWARD = 3;
export const RECOMPUTE = 4;
export const OPTIMIZER = 5;

export const COLLECTIVE = 1;
export const EXCEPTION = 2;

export interface Kind {
    readonly word: string;
    readonly letter: string;
    /** Stands out from white and from near black by 3:1, and near black from it by 4.5:1. */
    readonly colour: string;
    readonly pattern: "plain" | "stripes" | "dots" | "bars" | "counter";
}

/** By the number that `columns.py` writes. */
export const KINDS: readonly Kind[] = [
    { word: "other", letter: "", colour: "#a39063", pattern: "counter" },
    { word: "step", letter: "S", colour: "#8a96a6", pattern: "plain" },
    { word: "forward", letter: "F", colour: "#4b98e6", pattern: "plain" },
    { word: "backward", letter: "B", colour: "#d67e2d", pattern: "stripes" },
    { word: "recompute", letter: "R", colour: "#ad7eda", pattern: "dots" },
    { word: "optimizer", letter: "O", colour: "#33a67c", pattern: "bars" },
];

/** On any of the colours. */
export const INK = "#0b0f14";

/** A tile of 8 by 8 pixels that repeats without seams. */
export function drawTile(kind: Kind, scale: number): HTMLCanvasElement {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = Math.round(8 * scale);
    const ctx = canvas.getContext("2d")!;
    ctx.scale(canvas.width / 8, canvas.height / 8);
    ctx.fillStyle = kind.colour;
    ctx.fillRect(0, 0, 8, 8);
    ctx.fillStyle = ctx.strokeStyle = "rgba(0, 0, 0, 0.2)";
    ctx.lineWidth = 2;
    if (kind.pattern === "stripes" || kind.pattern === "counter") {
        const up = kind.pattern === "stripes" ? 1 : -1;
        ctx.beginPath();
        for (const shift of [-8, 0, 8]) {
            ctx.moveTo(shift - 2, up > 0 ? 10 : -2);
            ctx.lineTo(shift + 10, up > 0 ? -2 : 10);
        }
        ctx.stroke();
    } else if (kind.pattern === "dots") {
        for (const [x, y] of [
            [2, 2],
            [6, 6],
        ] as const) {
            ctx.beginPath();
            ctx.arc(x, y, 1.2, 0, 2 * Math.PI);
            ctx.fill();
        }
    } else if (kind.pattern === "bars") {
        ctx.fillRect(0, 0, 2, 8);
    }
    return canvas;
}
