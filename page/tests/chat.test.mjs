// The chat in a browser, against the real program and a tiny model.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, beforeEach, afterEach, test } from "node:test";
import { answers, browser, home, say, serve, set, settled, tab } from "./site.mjs";

let server;
let chromium;
let page;
let context;
let check;

before(async () => {
  server = await serve(home("user/alpha", "user/beta"));
  chromium = await browser();
});
after(async () => {
  await chromium?.close();
  server?.stop();
});
beforeEach(async () => ({ page, context, check } = await tab(chromium, server.url)));
afterEach(async () => {
  check();
  await context.close();
});

const text = (place) => place.evaluate((element) => element.querySelector(".markdown")?.textContent ?? "");
const versions = (place) => place.locator(".versions > span").textContent();

/** An answer that cannot end early, as one of a model of random numbers would, and is the same however it is shown. */
const LONG = JSON.stringify({ type: "array", items: { enum: ["a river", "a hill"] }, minItems: 2000 });

test("an answer comes piece by piece, and is there again after a reload", async () => {
  await set(page, "Most tokens", "3000");
  await set(page, "JSON schema of the answer", LONG);
  await page.evaluate(() => {
    window.lengths = [];
    new MutationObserver(() => window.lengths.push(document.querySelector("article.assistant .markdown")?.textContent.length ?? 0)).observe(
      document.body,
      { subtree: true, childList: true, characterData: true },
    );
  });
  await say(page, "Hello there");
  await settled(page, 1);
  const steps = await page.evaluate(() => new Set(window.lengths.filter((n) => n > 0)).size);
  assert.ok(steps > 2, `${steps} steps`);
  const line = await answers(page).locator(".figures").textContent();
  assert.match(line, /^[\d,]+ tokens? · .*tok\/s · first after .* · prompt \d+/);
  const [said, where] = [await text(answers(page)), page.url()];
  assert.match(where, /#\/chat\/\w+$/);
  await page.reload();
  await answers(page).waitFor();
  assert.equal(await text(answers(page)), said);
  assert.equal(await page.locator("article.user .said").textContent(), "Hello there");
});

test("a stopped answer keeps what was said", async () => {
  await set(page, "Most tokens", "8000");
  await set(page, "JSON schema of the answer", LONG);
  await say(page, "Go on for ever");
  await page.locator("article.assistant .markdown").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await settled(page, 1);
  const one = answers(page);
  assert.match(await one.locator(".figures").textContent(), /stopped/);
  assert.ok((await text(one)).length > 0);
  assert.equal(await page.getByRole("button", { name: "Send" }).isVisible(), true);
});

test("an edit is a branch beside the message, and another answer one beside the answer", async () => {
  await set(page, "Most tokens", "12");
  await say(page, "first words");
  await settled(page, 1);
  const user = page.locator("article.user");
  await user.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Edit the message").fill("other words");
  await page.keyboard.press("Enter");
  await settled(page, 1);
  assert.equal(await versions(user), "2/2");
  assert.equal(await user.locator(".said").textContent(), "other words");
  await user.getByRole("button", { name: "Previous version" }).click();
  assert.equal(await user.locator(".said").textContent(), "first words");
  await answers(page).getByRole("button", { name: "Regenerate" }).click();
  await page.waitForFunction(() => document.querySelector("article.assistant .versions")?.textContent?.includes("2/2"));
  await settled(page, 1);
  assert.equal(await versions(answers(page)), "2/2");
  await page.reload();
  await answers(page).waitFor();
  assert.equal(await versions(user), "1/2");
});

test("the same seed gives the same bytes", async () => {
  await set(page, "Most tokens", "40");
  await set(page, "Seed", "11");
  await set(page, "Temperature", "1");
  await say(page, "Something");
  await settled(page, 1);
  const first = await text(answers(page));
  await answers(page).getByRole("button", { name: "Regenerate" }).click();
  await page.waitForFunction(() => document.querySelector("article.assistant .versions")?.textContent?.includes("2/2"));
  await settled(page, 1);
  assert.equal(await text(answers(page)), first);
});

test("an answer holds a schema, and a schema that is none is told", async () => {
  await set(page, "JSON schema of the answer", "{ no");
  await page.locator(".panel .bad").waitFor();
  assert.equal(await page.getByRole("button", { name: "Send" }).isDisabled(), true);
  const schema = { type: "object", properties: { colour: { enum: ["red", "blue"] }, n: { enum: [1, 2] } }, required: ["colour", "n"], additionalProperties: false };
  await set(page, "JSON schema of the answer", JSON.stringify(schema));
  await say(page, "A colour");
  await settled(page, 1);
  const value = JSON.parse(await text(answers(page)));
  assert.deepEqual(Object.keys(value), ["colour", "n"]);
  assert.ok(["red", "blue"].includes(value.colour) && [1, 2].includes(value.n));
});

test("a call of a tool is shown, and its result is written by hand", async () => {
  const weather = { name: "weather", parameters: { type: "object", properties: { place: { enum: ["Paris", "Rome"] } }, required: ["place"], additionalProperties: false } };
  await set(page, "Tools", JSON.stringify([weather]));
  await page.getByLabel("Use of tools").selectOption("required");
  await set(page, "Most tokens", "200");
  await say(page, "What is the weather?");
  await settled(page, 1);
  const call = page.locator(".call").first();
  assert.equal(await call.locator("strong").textContent(), "weather");
  assert.match(await call.locator("pre").textContent(), /"place": "(Paris|Rome)"/);
  await page.getByLabel("Use of tools").selectOption("none");
  for (const field of await page.getByLabel("Result of weather").all()) await field.fill("18 degrees");
  await page.getByRole("button", { name: /^Send results?$/ }).click();
  await settled(page, 2);
  assert.equal(await page.locator("article.tool pre").first().textContent(), "18 degrees");
  assert.equal(await answers(page).nth(1).locator(".bad").count(), 0);
});

test("files go along as text, dropped or chosen, and what is no text is told", async () => {
  await set(page, "Most tokens", "4");
  await page.getByLabel("Files", { exact: true }).setInputFiles({ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("chosen words") });
  await page.getByText("notes.txt").waitFor();
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped words"], "dropped.md"));
    data.items.add(new File([new Uint8Array([0, 1, 2, 255])], "picture.png"));
    document.querySelector(".composer").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  });
  await page.getByText("picture.png is no text").waitFor();
  assert.deepEqual((await page.locator(".files li").allTextContents()).map((name) => name.trim()), ["notes.txt", "dropped.md"]);
  const asked = page.waitForRequest("**/v1/chat/completions");
  await say(page, "Read these");
  const { messages } = (await asked).postDataJSON();
  for (const words of ["notes.txt", "chosen words", "dropped.md", "dropped words", "Read these"]) assert.ok(messages[0].content.includes(words), words);
  await settled(page, 1);
  assert.equal(await page.locator("article.user .file").count(), 2);
});

test("two models answer side by side", async () => {
  await set(page, "Most tokens", "20");
  // The one that answers is known first: the other is another one.
  await page.waitForFunction(() => document.querySelector("select[aria-label=Model]")?.value);
  await page.getByRole("button", { name: "Two models side by side" }).click();
  await page.getByLabel("Second model").selectOption({ index: 1 });
  await say(page, "Both of you");
  await settled(page, 2);
  const names = await answers(page).evaluateAll((all) => all.map((one) => one.getAttribute("aria-label")));
  assert.equal(new Set(names).size, 2, names.join());
  assert.deepEqual(await page.locator("article.user .said").allTextContents(), ["Both of you", "Both of you"]);
});

test("chats are searched, renamed, exported, deleted, brought back and imported", async () => {
  await set(page, "Most tokens", "4");
  for (const words of ["about zebras", "about walnuts"]) {
    await page.getByRole("button", { name: "New chat" }).click();
    await say(page, words);
    await settled(page, 1);
  }
  const rows = page.locator(".chats a .title");
  await page.getByLabel("Search chats").fill("zebras");
  assert.deepEqual(await rows.allTextContents(), ["about zebras"]);
  await page.getByLabel("Search chats").fill("");
  assert.equal(await rows.count(), 2);
  await page.getByRole("button", { name: "Rename about zebras" }).click();
  await page.getByLabel("Name of this chat").fill("Stripes");
  await page.keyboard.press("Enter");
  assert.ok((await rows.allTextContents()).includes("Stripes"));
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export all" }).click();
  const file = await (await saved).path();
  assert.equal(JSON.parse(readFileSync(file, "utf8")).conversations.length, 2);
  await page.getByRole("button", { name: "Delete Stripes" }).click();
  assert.deepEqual(await rows.allTextContents(), ["about walnuts"]);
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await rows.count(), 2);
  await page.getByRole("button", { name: "Delete Stripes" }).click();
  await page.getByLabel("Chats to import").setInputFiles({ name: "chats.json", mimeType: "application/json", buffer: readFileSync(file) });
  await page.getByText("2 chats imported").waitFor();
  assert.equal(await rows.count(), 2);
  await page.getByLabel("Chats to import").setInputFiles({ name: "bad.json", mimeType: "application/json", buffer: Buffer.from('{"id":"x"}') });
  await page.getByText("no conversation of this page").waitFor();
  await page.reload();
  await rows.first().waitFor();
  assert.equal(await rows.count(), 2);
});

const WRITTEN = `# Title

A **bold** word, \`code\`, a [page](https://example.com/x) and a [trap](javascript:alert(1)).

| a | b |
|---|--:|
| 1 | 2 |

\`\`\`rust
fn main() { println!("hi"); }
\`\`\`

Inline $a^2+b^2=c^2$ costs $5 and $6.

$$\\int_0^1 x\\,dx = \\frac{1}{2}$$

<img src="https://evil.example/x.png" onerror="window.owned=1"><script>window.owned=1</script>

![far](https://evil.example/y.png)

- [x] done
- [ ] open
`;

test("Markdown is drawn, and what it could do harm with is text", async () => {
  const turns = {
    a: { id: "a", parent: null, role: "user", text: "Draw", at: 1 },
    b: { id: "b", parent: "a", role: "assistant", text: WRITTEN, reasoning: "Thoughts come **first**.", at: 2, model: "user/alpha" },
  };
  const one = { id: "abc123", title: "", created: 1, changed: 2, turns, panes: [{ model: "user/alpha", leaf: "b" }], settings: {} };
  await page.getByLabel("Chats to import").setInputFiles({ name: "one.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(one)) });
  await page.locator(".chats a").click();
  const body = answers(page).locator("> .markdown");
  await body.locator("math").first().waitFor();
  await body.locator(".hljs-keyword").first().waitFor();
  assert.equal(await body.locator("math").count(), 2);
  assert.equal(await body.locator("table td").count(), 2);
  assert.equal(await body.locator("td.at-right").textContent(), "2");
  assert.equal(await body.locator("input[type=checkbox]").count(), 2);
  assert.equal(await body.locator("img, script").count(), 0);
  assert.deepEqual(await body.locator("a").evaluateAll((all) => all.map((a) => a.getAttribute("href"))), ["https://example.com/x", "https://evil.example/y.png"]);
  assert.match(await body.textContent(), /<script>window\.owned=1<\/script>/);
  assert.equal(await page.evaluate(() => window.owned), undefined);
  const thoughts = answers(page).locator(".reasoning");
  assert.equal(await thoughts.locator("strong").isVisible(), false);
  await thoughts.locator("summary").click();
  assert.equal(await thoughts.locator("strong").isVisible(), true);
});
