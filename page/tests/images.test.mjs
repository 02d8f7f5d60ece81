// Images in the chat, against the real program and a model of random numbers that sees.
import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browser, home, say, seeing, serve, set, settled, tab } from "./site.mjs";

/** A picture of 64 x 64 pixels as a bitmap. */
function bitmap(red) {
  const file = Buffer.alloc(54 + 64 * 64 * 3, red);
  file.write("BM");
  [file.length, 0, 54, 40, 64, 64, 1 | (24 << 16), 0, 0, 0, 0, 0, 0].forEach((number, at) => file.writeUInt32LE(number, 2 + at * 4));
  return file;
}

let server;
let chromium;

before(async () => {
  const place = home("user/alpha");
  const eyes = join(mkdtempSync(join(tmpdir(), "tokenmill-eyes-")), "eyes");
  seeing(eyes);
  server = await serve(place, [eyes, "user/alpha"]);
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  server?.stop();
});

test("images go with a message to a model that sees, and to no other", async () => {
  const { page, context, check } = await tab(chromium, server.url);
  await page.getByLabel("Model", { exact: true }).selectOption("eyes");
  await set(page, "Most tokens", "4");
  await page.getByRole("button", { name: "Add images, or files as text" }).waitFor();
  const image = { name: "red.bmp", mimeType: "image/bmp", buffer: bitmap(200) };
  await page.getByLabel("Files", { exact: true }).setInputFiles(image);
  await page.locator(".files img").waitFor();
  // A pasted one, and one that is dropped and taken away again.
  const give = (kind, name, type) =>
    page.evaluate(
      async ([kind, name, type, bytes]) => {
        const list = new DataTransfer();
        list.items.add(new File([new Uint8Array(bytes)], name, { type }));
        const [event, to] = kind === "paste" ? [new ClipboardEvent("paste", { clipboardData: list, bubbles: true, cancelable: true }), "#say"] : [new DragEvent("drop", { dataTransfer: list, bubbles: true, cancelable: true }), ".composer"];
        document.querySelector(to).dispatchEvent(event);
      },
      [kind, name, type, [...bitmap(9)]],
    );
  await give("paste", "pasted.bmp", "image/bmp");
  await page.locator(".files img").nth(1).waitFor();
  await give("drop", "dropped.bmp", "image/bmp");
  await page.getByRole("button", { name: "Remove dropped.bmp" }).click();
  assert.equal(await page.locator(".files img").count(), 2);
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await say(page, "What is it?");
  const { messages } = (await asked).postDataJSON();
  const parts = messages.at(-1).content;
  assert.deepEqual(parts.map((part) => part.type), ["image_url", "image_url", "text"]);
  assert.equal(parts[0].image_url.url, `data:image/bmp;base64,${bitmap(200).toString("base64")}`);
  await settled(page, 1);
  assert.equal(await page.locator("article.assistant .bad").count(), 0);
  // 64 x 64 pixels are 8 x 8 rows: the prompt has them twice.
  const line = await page.locator("article.assistant .figures").textContent();
  assert.ok(Number(/prompt ([\d,]+)/.exec(line)[1].replaceAll(",", "")) > 128, line);
  await page.reload();
  const shown = page.locator("article.user .pictures img");
  await shown.first().waitFor();
  assert.deepEqual(await shown.evaluateAll((all) => all.map((one) => [one.alt, one.naturalWidth])), [["red.bmp", 64], ["pasted.bmp", 64]]);
  await page.getByRole("button", { name: "New chat" }).click();
  await page.getByLabel("Model", { exact: true }).selectOption({ label: "alpha" });
  await page.getByRole("button", { name: "Add files as text" }).waitFor();
  await page.getByLabel("Files", { exact: true }).setInputFiles(image);
  await page.getByText("red.bmp is an image, and alpha is not known to see any").waitFor();
  check();
  await context.close();
});
