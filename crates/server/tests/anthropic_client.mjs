// Drives a running server with the official `@anthropic-ai/sdk` client (1.14.0):
//
//     node anthropic_client.mjs http://127.0.0.1:8080
//
// Works with any model that has a chat template; ends with status 0 and "ok" when every check held.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2].replace(/\/$/, ""), apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Count: one, two," }];
const lookup = {
  name: "lookup",
  description: "Looks a word up",
  input_schema: {
    type: "object",
    properties: { word: { enum: ["river", "sea"] } },
    required: ["word"],
    additionalProperties: false,
  },
};
const inputTokens = (usage) =>
  usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens;

async function wholeAndStream(model) {
  const ask = { model, max_tokens: 24, temperature: 0, system: "You are terse.", messages };
  const whole = await client.messages.create(ask);
  assert.ok(["end_turn", "max_tokens"].includes(whole.stop_reason));
  assert.deepEqual(whole.content.map((block) => block.type), ["text"]);
  let text = "";
  const stream = client.messages.stream(ask).on("text", (part) => (text += part));
  const last = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(last.content[0].text, text);
  assert.equal(last.stop_reason, whole.stop_reason);
  const counted = await client.messages.countTokens({ model, system: ask.system, messages });
  assert.equal(counted.input_tokens, inputTokens(whole.usage));
  assert.equal(counted.input_tokens, inputTokens(last.usage));
}

async function tools(model) {
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const ask = { model, max_tokens: 256, messages, tools: [lookup], tool_choice };
  const said = await client.messages.stream(ask).finalMessage();
  assert.equal(said.stop_reason, "tool_use");
  const call = said.content.find((block) => block.type === "tool_use");
  assert.equal(call.name, "lookup");
  assert.ok(["river", "sea"].includes(call.input.word));
  const results = said.content
    .filter((block) => block.type === "tool_use")
    .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: "flowing water" }));
  const after = [...messages, { role: "assistant", content: said.content }, { role: "user", content: results }];
  const next = await client.messages.create({ model, max_tokens: 8, messages: after, tools: [lookup] });
  assert.ok(next.usage.output_tokens > 0);
}

async function thinking(model) {
  const ask = { model, max_tokens: 64, messages, thinking: { type: "enabled", budget_tokens: 32 } };
  const said = await client.messages.stream(ask).finalMessage();
  const after = [...messages, { role: "assistant", content: said.content }, { role: "user", content: "Go on." }];
  if (said.content.length) await client.messages.create({ ...ask, messages: after });
}

async function kept(model) {
  const text = "The river flows to the sea. ".repeat(20);
  const block = { type: "text", text, cache_control: { type: "ephemeral" } };
  const ask = { model, max_tokens: 2, messages: [{ role: "user", content: [block] }] };
  await client.messages.create(ask);
  assert.ok((await client.messages.create(ask)).usage.cache_read_input_tokens > 64);
}

async function errors(model) {
  const ask = { model, max_tokens: 4, messages };
  await assert.rejects(client.messages.create({ ...ask, model: "nobody" }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...ask, messages: [] }), Anthropic.BadRequestError);
  const long = [{ role: "user", content: "word ".repeat(200_000) }];
  await assert.rejects(client.messages.create({ ...ask, messages: long }), /prompt is too long/);
}

const [model] = (await client.models.list()).data.map((one) => one.id);
assert.equal((await client.models.retrieve(model)).id, model);
for (const check of [wholeAndStream, tools, thinking, kept, errors]) {
  await check(model);
  console.log(`${check.name}: ok`);
}
console.log("ok");
