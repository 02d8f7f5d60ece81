// Builds the page into the server's crate. File names stay the same; their folder is named by the sources.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";
import { digest } from "./sources.mjs";

const out = join(import.meta.dirname, "../crates/server/page");
const build = digest();

/** The licences of all packages that these modules are from. */
function licences(modules: Iterable<string>): string {
  const folders = [...modules].map((id) => /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1]).filter((folder) => folder !== undefined);
  const texts = [...new Set(folders)].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((other) => /^licen[cs]e/i.test(other));
    if (!file) throw new Error(`${name} has no licence`);
    return `${name} ${version}, ${license}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

export default defineConfig({
  base: `/page/${build}/`,
  publicDir: false,
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: out,
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "app.css" : "[name][extname]"),
      },
    },
  },
  plugins: [
    {
      name: "licences and digest",
      generateBundle() {
        this.emitFile({ type: "asset", fileName: "licences.txt", source: licences(this.getModuleIds()) });
      },
      closeBundle: () => writeFileSync(join(out, "build.txt"), `${build}\n`),
    },
  ],
});
