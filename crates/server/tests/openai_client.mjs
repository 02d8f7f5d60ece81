// Drives a running server with the official `openai` client (7.59.0): node openai_client.mjs http://127.0.0.1:8080
//
// Works with any model that has a chat template; ends with status 0 and "ok" when every check held.

import assert from "node:assert/strict";

import OpenAI from "openai";

const base = process.argv[2].replace(/\/$/, "");
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [
  { role: "system", content: "You are terse." },
  { role: "user", content: [{ type: "text", text: "Count: one, two," }] },
];
const schema = {
  type: "object",
  properties: { ok: { type: "boolean" } },
  required: ["ok"],
  additionalProperties: false,
};
const parameters = {
  type: "object",
  properties: { word: { enum: ["river", "sea"] } },
  required: ["word"],
  additionalProperties: false,
};
const lookup = { name: "lookup", description: "Looks a word up", parameters, strict: true };

async function chat(model) {
  const ask = { model, messages, max_tokens: 24, seed: 7 };
  const whole = await client.chat.completions.create(ask);
  const [choice] = whole.choices;
  assert.ok(["stop", "length"].includes(choice.finish_reason));
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let text = "";
  let last;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...ask, ...options })) {
    text += chunk.choices[0]?.delta.content ?? "";
    last = chunk;
  }
  assert.equal(text, choice.message.content);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  const final = await client.chat.completions.stream(ask).finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
  const again = [...messages, choice.message, { role: "user", content: "And then?" }];
  assert.ok((await client.chat.completions.create({ ...ask, messages: again })).choices.length);
}

async function held(model) {
  const response_format = { type: "json_schema", json_schema: { name: "n", schema, strict: true } };
  const parsed = await client.chat.completions.parse({ model, messages, response_format, temperature: 0 });
  assert.equal(typeof parsed.choices[0].message.parsed.ok, "boolean");
}

async function tools(model) {
  const tools = [{ type: "function", function: lookup }];
  const one = { tool_choice: "required", parallel_tool_calls: false };
  const ask = { model, messages, tools, ...one, seed: 1, max_tokens: 256 };
  const whole = await client.chat.completions.create(ask);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const final = await client.chat.completions.stream(ask).finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "lookup");
  assert.ok(["river", "sea"].includes(JSON.parse(call.function.arguments).word));
  const told = { role: "tool", tool_call_id: call.id, content: "flowing water" };
  const after = [...messages, final.choices[0].message, told];
  const next = await client.chat.completions.create({ model, messages: after, tools, max_tokens: 8 });
  assert.ok(next.choices[0].message);
  let ran = 0;
  const run = { ...lookup, parse: JSON.parse, function: () => (ran += 1, "flowing water") };
  const named = { type: "function", function: { name: "lookup" } };
  const runner = client.chat.completions.runTools({ ...ask, tools: [{ type: "function", function: run }], tool_choice: named });
  await runner.done();
  assert.equal(ran, 1);
}

async function completions(model) {
  const ask = { model, prompt: "The quick brown fox", max_tokens: 16, seed: 3 };
  const whole = await client.completions.create(ask);
  let text = "";
  for await (const chunk of await client.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
}

async function responses(model) {
  const ask = { model, input: "Count: one, two,", max_output_tokens: 24, temperature: 0 };
  const whole = await client.responses.create(ask);
  let text = "";
  const kinds = [];
  const stream = client.responses.stream(ask);
  for await (const event of stream) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
  assert.equal(kinds.at(0), "response.created");
  assert.equal(kinds.at(-1), `response.${whole.status}`);
  const format = { type: "json_schema", name: "n", schema, strict: true };
  const parsed = await client.responses.parse({ model, input: "Is it so?", text: { format } });
  assert.equal(typeof parsed.output_parsed.ok, "boolean");
  const tools = [{ type: "function", ...lookup }];
  const one = { tools, tool_choice: "required", parallel_tool_calls: false };
  const called = await client.responses.create({ ...ask, ...one, max_output_tokens: 256 });
  const call = called.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "lookup");
  const told = { type: "function_call_output", call_id: call.call_id, output: "flowing water" };
  const input = [{ role: "user", content: ask.input }, ...called.output, told];
  assert.ok((await client.responses.create({ ...ask, input, tools })).output.length);
}

async function errors(model) {
  await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages: [] }), OpenAI.BadRequestError);
  await assert.rejects(client.responses.retrieve("resp_1"), OpenAI.NotFoundError);
}

async function cancel(model) {
  const ask = { model, prompt: "Once upon a time", max_tokens: 100_000, ignore_eos: true, stream: true };
  const stream = await client.completions.create(ask);
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
}

const [model] = (await client.models.list()).data.map((one) => one.id);
assert.equal((await client.models.retrieve(model)).id, model);
for (const check of [chat, held, tools, completions, responses, errors, cancel]) {
  await check(model);
  console.log(`${check.name}: ok`);
}
console.log("ok");
