// frontend/src -> otel_modtrack/view/html/page.html: one file, with a policy that lets nothing else
// run and nothing be loaded; and LICENSES.txt of the libraries in it. An argument is another folder
// to write to.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { argv } from "node:process";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const target = argv[2] ?? here("../otel_modtrack/view/html");

const options = {
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    legalComments: "none", // all licences stand in LICENSES.txt
    target: ["chrome110", "firefox115", "safari16.4"],
    logLevel: "warning",
};
const bundled = new Set();
const text = async (entry, more) => {
    const { outputFiles, metafile } = await build({
        ...options,
        entryPoints: [here(entry)],
        ...more,
    });
    const [output] = Object.values(metafile.outputs);
    for (const [input, { bytesInOutput }] of Object.entries(output.inputs)) {
        const library = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1];
        if (library && bytesInOutput > 0) bundled.add(library);
    }
    return outputFiles[0].text.trim();
};
const script = await text("src/main.ts", { format: "iife" });
const style = await text("src/page.css", {});
const hash = (content) => `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
const policy = [
    "default-src 'none'",
    `script-src ${hash(script)}`,
    `style-src ${hash(style)}`,
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
].join("; ");
const licences = ["page.html contains these libraries:"];
for (const library of [...bundled].sort()) {
    const folder = here(`node_modules/${library}`);
    const { version, license } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
    const file = (await readdir(folder)).find((name) => /^licen[cs]e/i.test(name));
    const words = (await readFile(`${folder}/${file}`, "utf8")).trim().replaceAll("\r", "");
    licences.push(`${library} ${version} (${license})\n\n${words}`);
}
const licenceText = `${licences.join("\n\n----\n\n")}\n`;

const parts = {
    policy,
    style: `<style>${style}</style>`,
    // Where Python puts the spans.
    data: '<script type="text/plain" id="data"><!--data--></script>',
    // The page is handed on, and they with it.
    licences: `<script type="text/plain" id="licences">\n${licenceText}</script>`,
    script: `<script>${script}</script>`,
};
let page = await readFile(here("src/page.html"), "utf8");
page = page.replace(/\n\s+/g, "\n");
for (const [name, content] of Object.entries(parts)) {
    page = page.replace(`<!--${name}-->`, () => content);
}
await writeFile(`${target}/page.html`, page);
await writeFile(`${target}/LICENSES.txt`, licenceText);
