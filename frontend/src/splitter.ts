// The edge between the timeline and the summary, which can be moved.

import { get } from "./dom";

/** @param needed By the timeline, in pixels: what it does not need is the summary's. */
export function makeSplitter(needed: number): void {
    const splitter = get("splitter");
    const main = splitter.parentElement!;
    let share = 0; // of the height, in per cent
    const set = (wanted: number) => {
        share = Math.max(12, Math.min(75, wanted));
        main.style.setProperty("--summary", `${share}%`);
        splitter.setAttribute("aria-valuenow", String(Math.round(share)));
    };
    set(Math.max(34, Math.min(55, 100 - (100 * needed) / main.clientHeight)));
    splitter.addEventListener("pointerdown", (event) => {
        splitter.setPointerCapture(event.pointerId);
    });
    splitter.addEventListener("pointermove", (event) => {
        if (!splitter.hasPointerCapture(event.pointerId)) return;
        const box = main.getBoundingClientRect();
        set((100 * (box.bottom - event.clientY)) / box.height);
    });
    splitter.addEventListener("keydown", (event) => {
        const by = { ArrowUp: 4, ArrowDown: -4 }[event.key];
        if (by === undefined) return;
        event.preventDefault();
        set(share + by);
    });
}
