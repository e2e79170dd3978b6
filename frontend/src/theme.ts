// Colours of what is drawn on canvas; the rest is in page.css.

export interface Palette {
    readonly background: string;
    readonly text: string;
    readonly faint: string;
    readonly line: string;
    /** Of spans that a search does not find. */
    readonly dim: string;
    readonly error: string;
    readonly accent: string;
    /** Of the selected span's frame, and around that frame. */
    readonly frame: string;
    readonly halo: string;
}

export const PALETTES: Record<"light" | "dark", Palette> = {
    light: {
        background: "#ffffff",
        text: "#1b2129",
        faint: "#59636f",
        line: "#e6e9ed",
        dim: "#e3e6ea",
        error: "#c21f32",
        accent: "#0a5cc7",
        frame: "#0b0f14",
        halo: "#ffffff",
    },
    dark: {
        background: "#14171c",
        text: "#e4e8ed",
        faint: "#9aa5b1",
        line: "#262b33",
        dim: "#2b313a",
        error: "#ff6b78",
        accent: "#7cb4ff",
        frame: "#ffffff",
        halo: "#0b0f14",
    },
};

export const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
