// Numbers as people read them.

const UNITS: readonly [string, number][] = [
    ["s", 1e9],
    ["ms", 1e6],
    ["µs", 1e3],
    ["ns", 1],
];

/** `12.35 ms`: four digits at most after the first. */
export function duration(ns: number): string {
    const [unit, size] = UNITS.find(([, size]) => Math.abs(ns) >= size) ?? ["ns", 1];
    const value = ns / size;
    const digits = unit === "ns" ? 0 : Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3;
    return `${value.toFixed(digits)} ${unit}`;
}

/** Milliseconds, as the terminal's tables have them. */
export function milliseconds(ns: number): string {
    return (ns / 1e6).toFixed(3);
}

/** `12.3%`. */
export function share(part: number, whole: number): string {
    return `${(whole > 0 ? (100 * part) / whole : 0).toFixed(1)}%`;
}

/** `1,234`. */
export function count(value: number): string {
    return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `2 ranks`, `1 rank`. */
export function plural(value: number, what: string): string {
    return `${count(value)} ${what}${value === 1 ? "" : "s"}`;
}

/** `258.0 KiB`. */
export function bytes(size: number): string {
    if (size < 1024) return `${size} B`;
    let unit = "";
    for (unit of ["KiB", "MiB", "GiB", "TiB"]) {
        size /= 1024;
        if (size < 1023.95) break;
    }
    return `${size.toFixed(1)} ${unit}`;
}

/** Moments on an axis: a round step, and how to write its multiples. */
export function ticks(
    start: number,
    end: number,
    most: number,
): { step: number; label: (at: number) => string } {
    const rough = (end - start) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= rough)! * power);
    const [unit, size] = UNITS.find(([, size]) => Math.max(Math.abs(end), step) >= size) ?? [
        "ns",
        1,
    ];
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    return { step, label: (at) => `${(at / size).toFixed(digits)} ${unit}` };
}
