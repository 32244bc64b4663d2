// The official client, driven by tests/contract/test_npm_client.py: one JSON command a line in,
// one JSON answer a line out, until the input ends. `node client.mjs BASE_URL`, beside node_modules.
import { createInterface } from "node:readline";
import OpenAI from "openai";

const baseURL = process.argv[2];
const HI = [{ role: "user", content: "hi" }];
const CITY = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

async function textOf(stream) {
  let text = "";
  let last = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    last = chunk;
  }
  return { text, usage: last?.usage ?? null, last };
}

const COMMANDS = {
  async chat(client, { model }) {
    const call = client.chat.completions.create({ model, messages: HI, max_completion_tokens: 9 });
    const { data, response, request_id } = await call.withResponse();
    return {
      text: data.choices[0].message.content,
      usage: data.usage,
      request_id,
      same_id: data._request_id === request_id,
      cost_usd: response.headers.get("x-headrace-cost-usd"),
    };
  },
  async stream(client, { model, ...more }) {
    return textOf(await client.chat.completions.create({ model, messages: HI, stream: true, ...more }));
  },
  async helper(client, { model }) {
    const pieces = [];
    const stream = client.chat.completions.stream({ model, messages: HI, max_completion_tokens: 60 });
    stream.on("content", (piece) => pieces.push(piece));
    const whole = await stream.finalChatCompletion();
    return { pieces, text: whole.choices[0].message.content, finish: whole.choices[0].finish_reason };
  },
  async tools(client, { model }) {
    const asked = [];
    const runner = client.chat.completions.runTools({
      model,
      messages: HI,
      stream: true,
      tools: [
        {
          type: "function",
          function: {
            name: "weather",
            parameters: CITY,
            parse: JSON.parse,
            function: ({ city }) => asked.push(city) && `${city}: rain`,
          },
        },
      ],
    });
    return { text: await runner.finalContent(), asked };
  },
  async structured(client, { model }) {
    const json_schema = { name: "city", strict: true, schema: CITY };
    const found = await client.chat.completions.parse({
      model,
      messages: HI,
      response_format: { type: "json_schema", json_schema },
    });
    return JSON.parse(found.choices[0].message.content);
  },
  async embeddings(client, { model, input, ...more }) {
    const call = client.embeddings.create({ model, input, ...more });
    const { data, request_id } = await call.withResponse();
    return { vectors: data.data.map((one) => Array.from(one.embedding)), usage: data.usage, request_id };
  },
  async responses(client, { model }) {
    const call = client.responses.create({ model, input: "hi", max_output_tokens: 400 });
    const { data, request_id } = await call.withResponse();
    return { text: data.output_text, usage: data.usage, request_id };
  },
  async responses_stream(client, { model }) {
    let text = "";
    const stream = client.responses.stream({ model, input: "hi", max_output_tokens: 400 });
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    const whole = await stream.finalResponse();
    return { text, whole: whole.output_text, usage: whole.usage };
  },
  async models(client) {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    return ids;
  },
  async abort(client, { model }) {
    const stream = await client.chat.completions.create({ model, messages: HI, stream: true });
    let pieces = 0;
    for await (const chunk of stream) {
      pieces += chunk.choices[0]?.delta?.content ? 1 : 0;
      if (pieces === 2) stream.controller.abort();
    }
    return { pieces };
  },
};

function told(error) {
  return {
    class: error.constructor.name,
    is_api: error instanceof OpenAI.APIError,
    status: error.status ?? null,
    code: error.code ?? null,
    param: error.param ?? null,
    type: error.type ?? null,
    message: error.message,
    request_id: error.requestID ?? null,
    should_retry: error.headers?.get("x-should-retry") ?? null,
    limit: error.headers?.get("x-headrace-limit") ?? null,
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { does, key, retries = 0, ...words } = JSON.parse(line);
  const client = new OpenAI({ apiKey: key, baseURL, maxRetries: retries, timeout: 60_000 });
  let answer;
  try {
    answer = { is: await COMMANDS[does](client, words) };
  } catch (error) {
    answer = { error: told(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
