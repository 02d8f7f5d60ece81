// Drives a running server with Ollama's own client (0.6.4): node ollama_client.mjs http://127.0.0.1:8080
//
// Works with any model that has a chat template; ends with status 0 and "ok" when every check held.

import assert from "node:assert/strict";

import { Ollama } from "ollama";

const host = process.argv[2].replace(/\/$/, "");
const client = new Ollama({ host });
const [{ model }] = (await client.list()).models;
const messages = [{ role: "user", content: "Count: one, two," }];
const options = { num_predict: 12, temperature: 0 };

const whole = await client.chat({ model, messages, options });
assert.ok(whole.done && ["stop", "length"].includes(whole.done_reason) && whole.eval_count > 0);
assert.ok(Number.isInteger(whole.total_duration) && !Number.isNaN(Date.parse(whole.created_at)));
const parts = [];
for await (const part of await client.chat({ model, messages, options, stream: true })) parts.push(part);
assert.equal(parts.map((part) => part.message.content).join(""), whole.message.content);
assert.equal(parts.at(-1).done, true);

const told = await client.generate({ model, prompt: "Say hello.", options });
assert.ok(told.response.length > 0);

const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
const held = await client.chat({ model, messages, format: schema, options: { temperature: 0, num_predict: 60 } });
if (held.done_reason === "stop") assert.equal(typeof JSON.parse(held.message.content).ok, "boolean");

const tool = {
  type: "function",
  function: { name: "add", description: "Adds", parameters: { type: "object", required: ["a"], properties: { a: { type: "number" } } } },
};
const called = await client.chat({ model, messages, tools: [tool], options });
for (const call of called.message.tool_calls ?? []) assert.equal(typeof call.function.arguments, "object");

const shown = await client.show({ model });
assert.ok(shown.capabilities.includes("completion") && shown.details);
assert.ok((await client.ps()).models.length > 0);
assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
await assert.rejects(client.chat({ model: "no-such-model", messages }), (error) => error.status_code === 404);
await assert.rejects(client.chat({ model, messages: [{ ...messages[0], images: ["aGVsbG8="] }] }), /image/);

// A stream that its reader ends ends the answer.
const stopped = await client.chat({ model, messages, options: { num_predict: 2000 }, stream: true });
await assert.rejects(async () => {
  for await (const part of stopped) if (part) stopped.abort();
});
const created = await client.create({ model: "client-test", from: model, system: "You are terse." });
assert.equal(created.status, "success");
assert.equal((await client.delete({ model: "client-test" })).status, "success");
console.log("ok");
