// What the keys do.

import { get } from "./dom";
import type { Way } from "./walk";

export interface Actions {
    readonly zoomIn: () => void;
    readonly zoomOut: () => void;
    readonly pan: (fraction: number) => void;
    readonly scroll: (pages: number) => void;
    readonly fit: () => void;
    readonly walk: (way: Way) => void;
    readonly walkIcicle: (way: Way) => void;
    readonly findPath: () => void;
    readonly zoomToSelected: () => void;
    readonly showSelected: () => void;
    readonly goFound: (way: 1 | -1) => void;
    readonly goFailed: () => void;
    readonly goLinked: () => void;
    readonly step: (by: number) => void;
    readonly fold: () => void;
    readonly theme: () => void;
    readonly leave: () => void;
    readonly help: () => void;
}

type Keys = Record<string, () => void>;

const PART = 0.2; // of what is seen

export function listen(actions: Actions): void {
    const anywhere: Keys = {
        "/": () => get("search").focus(),
        "?": actions.help,
        "+": actions.zoomIn,
        "=": actions.zoomIn,
        "-": actions.zoomOut,
        "0": actions.fit,
        a: () => actions.pan(-PART),
        d: () => actions.pan(PART),
        z: actions.zoomToSelected,
        l: actions.goLinked,
        n: () => actions.goFound(1),
        N: () => actions.goFound(-1),
        e: actions.goFailed,
        f: actions.fold,
        t: actions.theme,
        "[": () => actions.step(-1),
        "]": () => actions.step(1),
        Escape: actions.leave,
    };
    const inside: Record<string, Keys> = {
        timeline: {
            ...arrows(actions.walk),
            "shift ArrowLeft": () => actions.pan(-PART),
            "shift ArrowRight": () => actions.pan(PART),
            "shift ArrowUp": () => actions.scroll(-PART),
            "shift ArrowDown": () => actions.scroll(PART),
            Enter: actions.showSelected,
            PageUp: () => actions.scroll(-0.8),
            PageDown: () => actions.scroll(0.8),
        },
        icicle: { ...arrows(actions.walkIcicle), Enter: actions.findPath },
    };
    document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (get<HTMLDialogElement>("help").open) return;
        const target = event.target as HTMLElement;
        if (target.matches("input, select") && event.key !== "Escape") return;
        const isShifted = event.shiftKey && event.key.startsWith("Arrow");
        const key = isShifted ? `shift ${event.key}` : event.key;
        const act = lookUp(inside[target.id] ?? {}, key) ?? lookUp(anywhere, key);
        if (act === undefined) return;
        event.preventDefault();
        act();
    });
}

function arrows(walk: (way: Way) => void): Keys {
    return {
        ArrowUp: () => walk("parent"),
        ArrowDown: () => walk("child"),
        ArrowLeft: () => walk("previous"),
        ArrowRight: () => walk("next"),
    };
}

function lookUp(keys: Keys, key: string): (() => void) | undefined {
    return Object.hasOwn(keys, key) ? keys[key] : undefined;
}
