// What the tests stand on: the real program with tiny models and a registry on loopback, and a browser that tells what
// it asked for. Set TOKENMILL to another program, CHROMIUM to another browser.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";

const root = join(import.meta.dirname, "../..");
const program = process.env.TOKENMILL ?? join(root, "target/debug/tokenmill");
const tiny = join(root, "tests/cases/template-that-looks-for-a-control-token");
const COMMIT = "0123456789".repeat(4);

/** Marks calls as Hermes' models do, so that an answer can be held to them. */
const TEMPLATE =
  "{% if tools %}<|im_start|>system\n<tool_call></tool_call>{{ tools|tojson }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" +
  "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/** A model of a few thousand numbers, with a context for whole conversations. */
function model(folder) {
  cpSync(tiny, folder, { recursive: true });
  for (const name of ["README.md", "expect.json", "request.json"]) rmSync(join(folder, name), { force: true });
  const change = (name, members) => {
    const all = JSON.parse(readFileSync(join(folder, name), "utf8"));
    writeFileSync(join(folder, name), JSON.stringify({ ...all, ...members }));
  };
  change("config.json", { max_position_embeddings: 16384 });
  change("tokenizer_config.json", { chat_template: TEMPLATE });
}

/** A model of random numbers that sees: Qwen2-VL as tests/golden has it, with a token for each byte. */
export function seeing(folder) {
  const golden = (name) => JSON.parse(readFileSync(join(root, "tests/golden/vision/qwen2_vl", name), "utf8"));
  const put = (name, value) => writeFileSync(join(folder, name), JSON.stringify(value));
  mkdirSync(folder, { recursive: true });
  const marks = ["im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad", "vision_pad"].map((word) => `<|${word}|>`);
  const id = (word) => 256 + marks.indexOf(`<|${word}|>`);
  const config = { ...golden("config.json"), vocab_size: 272, max_position_embeddings: 2048, bos_token_id: 256, eos_token_id: 257 };
  const ids = { image_token_id: "image_pad", video_token_id: "video_pad", vision_start_token_id: "vision_start", vision_end_token_id: "vision_end", vision_token_id: "vision_pad" };
  for (const [key, word] of Object.entries(ids)) config[key] = id(word);
  put("config.json", config);
  const plain = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
  let odd = 256;
  const vocab = Object.fromEntries(Array.from({ length: 256 }, (_, byte) => [String.fromCharCode(plain(byte) ? byte : odd++), byte]));
  const added = marks.map((content, at) => ({ id: 256 + at, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }));
  const bytes = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  put("tokenizer.json", { version: "1.0", added_tokens: added, pre_tokenizer: bytes, decoder: bytes, model: { type: "BPE", vocab, merges: [] } });
  const parts = "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}";
  const chat_template = `{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}${parts}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}`;
  put("tokenizer_config.json", { chat_template, eos_token: "<|im_end|>", tokenizer_class: "Qwen2Tokenizer" });
  const sizes = { min_pixels: 196, max_pixels: 40000, patch_size: 4, temporal_patch_size: 2, merge_size: 2 };
  put("preprocessor_config.json", { image_processor_type: "Qwen2VLImageProcessor", ...sizes });
  let [at, seed, head, data] = [0, 1, {}, []];
  for (const { name, shape, scale, offset } of golden("tensors.json").tensors) {
    const sides = shape.map((side) => (side === 157 ? 272 : side));
    const next = () => offset + scale * ((seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648 - 0.5);
    const numbers = Float32Array.from({ length: sides.reduce((a, b) => a * b, 1) }, next);
    head[name] = { dtype: "F32", shape: sides, data_offsets: [at, (at += numbers.byteLength)] };
    data.push(Buffer.from(numbers.buffer));
  }
  const text = Buffer.from(JSON.stringify(head));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(join(folder, "model.safetensors"), Buffer.concat([length, text, ...data]));
}

/** A home with these models in the hub's cache, and nothing else. */
export function home(...models) {
  const place = mkdtempSync(join(tmpdir(), "tokenmill-page-"));
  for (const name of models) {
    const folder = join(place, "hub", `models--${name.replace("/", "--")}`);
    mkdirSync(join(folder, "refs"), { recursive: true });
    mkdirSync(join(folder, "snapshots"));
    writeFileSync(join(folder, "refs/main"), COMMIT);
    model(join(folder, "snapshots", COMMIT));
  }
  return place;
}

/** A hub that has one model, `user/gamma`, and sends it slowly. */
export async function registry() {
  const folder = mkdtempSync(join(tmpdir(), "tokenmill-hub-"));
  model(folder);
  const files = Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))]));
  const server = createServer(async (request, response) => {
    if (request.url.startsWith("/api/models/user/gamma/")) {
      const sibling = ([rfilename, bytes]) => {
        const sha256 = createHash("sha256").update(bytes).digest("hex");
        // (Small files are told by the digest that git has for them.)
        const blobId = createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
        return { rfilename, size: bytes.length, ...(rfilename.endsWith("safetensors") ? { lfs: { sha256, size: bytes.length } } : { blobId }) };
      };
      return response.end(JSON.stringify({ sha: COMMIT, siblings: Object.entries(files).map(sibling) }));
    }
    const name = request.url.split("/").at(-1);
    const bytes = files[name];
    if (!bytes || !request.url.startsWith("/user/gamma/")) return response.writeHead(404).end();
    response.writeHead(200, { "content-length": bytes.length, etag: `"${name}"` });
    const pieces = 8;
    for (let at = 0; at < pieces && !response.destroyed; at += 1) {
      const cut = (part) => Math.floor((bytes.length * part) / pieces);
      response.write(bytes.subarray(cut(at), cut(at + 1)));
      if (bytes.length > 10_000) await sleep(250);
    }
    response.end();
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/** `tokenmill serve` on a free port; `env` over what is needed. */
export async function serve(place, args = [], env = {}) {
  const child = spawn(program, ["serve", "--port", "0", ...args], {
    env: {
      PATH: process.env.PATH,
      HOME: place,
      XDG_DATA_HOME: join(place, "data"),
      XDG_CACHE_HOME: join(place, "cache"),
      XDG_CONFIG_HOME: join(place, "config"),
      HF_HUB_CACHE: join(place, "hub"),
      HF_ENDPOINT: "http://127.0.0.1:9",
      ...env,
    },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const said = [];
  const url = await new Promise((done, failed) => {
    createInterface({ input: child.stderr }).on("line", (line) => {
      said.push(line);
      const found = /listening on (http:\/\/[\d.:]+)/.exec(line);
      if (found) done(found[1]);
    });
    child.on("exit", (code) => failed(new Error(`the program ended with ${code}:\n${said.join("\n")}`)));
  });
  return {
    url,
    said,
    stop: () => {
      child.removeAllListeners("exit");
      child.kill("SIGKILL");
      rmSync(place, { recursive: true, force: true });
    },
  };
}

export const browser = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });

/** A tab at the page that notes what must not be: requests that leave the origin, errors, refusals by the policy. */
export async function tab(of, url, options = {}) {
  const context = await of.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(url) && !to.startsWith("blob:") && !to.startsWith("data:")) wrong.push(`asked ${to}`);
  });
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    // (The browser itself tells of every answer that is an error; these are looked for.)
    if (message.type() === "error" && !text.includes("Failed to load resource")) wrong.push(`console: ${text}`);
  });
  page.setDefaultTimeout(20_000);
  await page.goto(`${url}/`);
  await page.getByRole("navigation", { name: "Screens" }).waitFor();
  const check = () => assert.deepEqual(wrong, []);
  return { page, context, check };
}

/** Chooses the model and says something. */
export async function say(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  // (Before there is a model to answer, Enter does nothing.)
  await page.locator(".composer .send:enabled").waitFor();
  await page.keyboard.press("Enter");
}

export const answers = (page) => page.locator("article.assistant");

/** Waits until nothing is written any more. */
export async function settled(page, count) {
  await page.waitForFunction((n) => {
    const all = [...document.querySelectorAll("article.assistant")];
    return all.length >= n && all.every((one) => one.getAttribute("aria-busy") !== "true");
  }, count);
}

/** Sets a number of the panel, which is opened for it. */
export async function set(page, label, value) {
  const panel = page.getByRole("complementary", { name: "Settings of this chat" });
  if (!(await panel.isVisible())) await page.getByRole("button", { name: "Settings", exact: true }).click();
  await panel.getByLabel(label, { exact: true }).fill(value);
}
