// Builds the page into the server's crate. File names stay the same; their folder is named by the sources.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";
import { digest } from "./sources.mjs";

const out = join(import.meta.dirname, "../crates/server/page");
const build = digest();

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
      name: "build digest",
      closeBundle: () => writeFileSync(join(out, "build.txt"), `${build}\n`),
    },
  ],
});
