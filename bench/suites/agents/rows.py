"""The agents that run.py runs: how each is installed, its settings, its command, and the dialects it speaks.

In settings, variables and commands $URL is the server's root, $MODEL the model's name, $KEY a key that means nothing,
$HOME the agent's throw-away home, $BIN its program, $TASK what it is asked, $CONTEXT and $ANSWER tokens; a row may add
words of its own."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Agent:
    """One package of npm or PyPI, pinned."""

    package: str
    program: str  # below the folder it is installed in
    command: list[str]
    settings: dict[str, str] = field(default_factory=dict)  # files below its home
    env: dict[str, str] = field(default_factory=dict)
    before: list[list[str]] = field(default_factory=list)  # commands that end before it starts
    # It ended with status 0 although it had no answer, where its output has one of these.
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """An agent as it speaks one dialect."""

    name: str
    agent: str
    dialect: str  # chat, responses, messages, ollama
    words: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # in the place of the agent's
    env: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # more words of its command, before the last
    more: bool = False  # run when all are asked for: other dialects of an agent that runs anyway
    tasks: tuple[str, ...] = ("look",)


TASKS = {
    "look": "List the files in this folder, then say in one sentence what is in a.txt.",
}

NODE = "npm:node@22.23.3"

CODEX = """model = "$MODEL"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
"""
OPENCODE = """{ "autoupdate": false, "share": "disabled", "permission": { "*": "allow" }, "enabled_providers": ["local"],
  "model": "local/$MODEL", "small_model": "local/$MODEL",
  "provider": { "local": { "npm": "$NPM", "name": "local", "options": { "baseURL": "$URL/v1", "apiKey": "$KEY" },
    "models": { "$MODEL": { "name": "$MODEL", "tool_call": true, "limit": { "context": $CONTEXT, "output": $ANSWER } } } } } }
"""
QWEN = """{ "security": { "auth": { "selectedType": "$AUTH" } }, "model": { "name": "$MODEL" },
  "privacy": { "usageStatisticsEnabled": false }, "telemetry": { "enabled": false },
  "general": { "disableAutoUpdate": true, "enableAutoUpdate": false } }
"""
PI = """{ "providers": { "local": { "baseUrl": "$BASE", "api": "$API", "apiKey": "$KEY",
  "models": [ { "id": "$MODEL", "reasoning": false, "contextWindow": $CONTEXT, "maxTokens": $ANSWER } ] } } }
"""
CLINE = """{ "version": 1, "lastUsedProvider": "$PROVIDER", "modes": {}, "providers": { "$PROVIDER": {
  "settings": { "provider": "$PROVIDER", "model": "$MODEL", "apiKey": "$KEY", "baseUrl": "$URL/v1" },
  "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual" } } }
"""
CONTINUE = """name: local
version: 1.0.0
schema: v1
models:
  - name: local
    provider: $PROVIDER
    model: $MODEL
    apiBase: $URL/v1
    apiKey: $KEY
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions: { contextLength: $CONTEXT, maxTokens: $ANSWER }
"""

AGENTS = {
    "codex": Agent(
        "npm:@openai/codex@0.171.0",
        "node_modules/.bin/codex",
        ["$BIN", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "$TASK"],
        env={"LOCAL_KEY": "$KEY", "CODEX_API_KEY": "$KEY"},
    ),
    "opencode": Agent(
        "npm:opencode-ai@1.18.33",
        "node_modules/.bin/opencode",
        ["$BIN", "run", "--auto", "-m", "local/$MODEL", "$TASK"],
        {".config/opencode/opencode.json": OPENCODE},
        {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
    ),
    "qwen": Agent(
        "npm:@qwen-code/qwen-code@0.24.4",
        "node_modules/.bin/qwen",
        ["$BIN", "--auth-type", "$AUTH", "-m", "$MODEL", "--approval-mode", "yolo", "-p", "$TASK"],
        {".qwen/settings.json": QWEN},
        {"QWEN_STREAM_IDLE_TIMEOUT_MS": "0"},  # it waits 4 minutes for a first token else, whatever keeps the connection open
        failed=("[API Error",),
    ),
    "pi": Agent(
        "npm:@mariozechner/pi-coding-agent@0.73.1",
        "node_modules/.bin/pi",
        ["$BIN", "-p", "--offline", "--provider", "local", "--model", "$MODEL", "$TASK"],
        {".pi/agent/models.json": PI},
        {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    ),
    "cline": Agent(
        "npm:cline@3.0.65",
        "node_modules/.bin/cline",
        ["$BIN", "--auto-approve", "true", "-P", "$PROVIDER", "-m", "$MODEL", "$TASK"],
        before=[["$BIN", "auth", "-p", "$PROVIDER", "-k", "$KEY", "-m", "$MODEL", "-b", "$URL/v1"]],
    ),
    "kilo": Agent(
        "npm:@kilocode/cli-linux-x64@7.7.9",
        "node_modules/@kilocode/cli-linux-x64/bin/kilo",
        ["$BIN", "run", "--auto", "-m", "local/$MODEL", "$TASK"],
        {".config/kilo/kilo.json": OPENCODE},
        {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "KILO_DISABLE_MODELS_FETCH": "1",
            "KILO_TELEMETRY_LEVEL": "off",
        },
    ),
    "continue": Agent(
        "npm:@continuedev/cli@1.5.47",
        "node_modules/.bin/cn",
        ["$BIN", "-p", "--auto", "--config", "$HOME/.continue/config.yaml", "$TASK"],
        {".continue/config.yaml": CONTINUE},
        {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_ALLOW_ANONYMOUS_TELEMETRY": "0"},
    ),
    "aider": Agent(
        "pip:aider-chat==0.86.2",
        "bin/aider",
        ["$BIN", "--model", "$PROVIDER/$MODEL", "--yes-always", "--no-analytics", "--no-check-update"]
        + ["--no-show-model-warnings", "--no-gitignore", "--no-auto-commits", "--no-pretty"]
        + ["--message", "$TASK", "a.txt"],
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        failed=("litellm.",),
    ),
}

OPENAI = {"OPENAI_BASE_URL": "$URL/v1", "OPENAI_API_BASE": "$URL/v1", "OPENAI_API_KEY": "$KEY", "OPENAI_MODEL": "$MODEL"}
ANTHROPIC = {
    "ANTHROPIC_BASE_URL": "$URL",
    "ANTHROPIC_API_BASE": "$URL",
    "ANTHROPIC_API_KEY": "$KEY",
    "ANTHROPIC_MODEL": "$MODEL",
}

CODEX_CUSTOM = (
    CODEX
    + """model_provider = "local"
model_context_window = $CONTEXT
[model_providers.local]
name = "local"
base_url = "$URL/v1"
env_key = "LOCAL_KEY"
wire_api = "responses"
"""
)
CODEX_BUILT_IN = CODEX + 'openai_base_url = "$URL/v1"\n'

SDKS = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}
AUTHS = {"chat": "openai", "responses": "openai-responses", "messages": "anthropic"}
APIS = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}
PROVIDERS = {"chat": "openai-compatible", "responses": "openai-native", "messages": "anthropic", "ollama": "ollama"}
DIALECTS = ("chat", "responses", "messages")


def _pi(dialect):
    base = "$URL" if dialect == "messages" else "$URL/v1"
    return Row(f"pi, {dialect}", "pi", dialect, {"API": APIS[dialect], "BASE": base})


def _cline(dialect):
    # ("cline auth" takes no address for these.)
    given = {"messages": CLINE, "ollama": CLINE.replace("$URL/v1", "$URL")}
    settings = {".cline/data/settings/providers.json": given[dialect]} if dialect in given else {}
    words = {"PROVIDER": PROVIDERS[dialect]}
    return Row(f"cline, {dialect}", "cline", dialect, words, settings, more=dialect != "chat")


ROWS = [
    Row("codex, custom provider", "codex", "responses", settings={".codex/config.toml": CODEX_CUSTOM}),
    Row("codex, built-in provider", "codex", "responses", settings={".codex/config.toml": CODEX_BUILT_IN}),
    Row(
        "codex, ollama",
        "codex",
        "responses",
        settings={".codex/config.toml": CODEX},
        env={"CODEX_OSS_BASE_URL": "$URL/v1"},
        flags=("--oss", "--local-provider", "ollama", "-m", "$MODEL"),
        more=True,
    ),
    *(Row(f"opencode, {d}", "opencode", d, {"NPM": SDKS[d]}) for d in DIALECTS),
    *(
        Row(f"qwen, {d}", "qwen", d, {"AUTH": AUTHS[d]}, {}, ANTHROPIC if d == "messages" else OPENAI, d != "chat")
        for d in DIALECTS
    ),
    *(_pi(d) for d in DIALECTS),
    *(_cline(d) for d in (*DIALECTS, "ollama")),
    *(Row(f"kilo, {d}", "kilo", d, {"NPM": SDKS[d]}, more=d != "chat") for d in DIALECTS),
    Row("continue, chat", "continue", "chat", {"PROVIDER": "openai"}),
    Row("continue, messages", "continue", "messages", {"PROVIDER": "anthropic"}, more=True),
    Row("aider, chat", "aider", "chat", {"PROVIDER": "openai"}, env=OPENAI),
    Row("aider, ollama", "aider", "ollama", {"PROVIDER": "ollama_chat"}, env={"OLLAMA_API_BASE": "$URL"}, more=True),
    Row("aider, messages", "aider", "messages", {"PROVIDER": "anthropic"}, env=ANTHROPIC, more=True),
]
