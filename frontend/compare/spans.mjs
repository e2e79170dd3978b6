// About n spans of a training on two ranks, five rows each. Times in milliseconds.

export const COLOURS = ["#4b98e6", "#d67e2d", "#ad7eda", "#8a96a6"];

export function makeSpans(n) {
    const spans = [];
    let seed = 1;
    const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
    const add = (rank, row, kind, name, start, duration, parent) =>
        spans.push({ rank, row, kind, name, start, duration, parent }) - 1;
    const steps = Math.round(n / 2 / 438);
    for (let rank = 0; rank < 2; rank++) {
        for (let step = 0; step < steps; step++) {
            const at = step * 110 + rank * 3;
            const root = add(rank, 0, 3, "train_step", at, 100 + 8 * random(), -1);
            for (const [kind, start, size] of [
                [0, at, 40],
                [1, at + 45, 50],
            ]) {
                const pass = add(rank, 1, kind, "GPT", start, size, root);
                for (let layer = 0; layer < 31; layer++) {
                    const each = size / 31;
                    const from = start + layer * each;
                    const took = each * (0.9 + 0.1 * random());
                    const block = add(rank, 2, kind, `layers.${layer}`, from, took, pass);
                    for (const [name, part] of [
                        ["attn", 0],
                        ["mlp", 0.5],
                    ]) {
                        const inner = from + part * took;
                        const module = add(rank, 3, kind, name, inner, took * 0.45, block);
                        add(rank, 4, kind, `${name}.up`, inner, took * 0.2, module);
                        add(rank, 4, kind, `${name}.down`, inner + took * 0.22, took * 0.2, module);
                    }
                }
            }
            add(rank, 1, 3, "optimizer_step", at + 96, 3, root);
        }
    }
    return spans;
}
