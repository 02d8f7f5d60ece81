/* A question, a tool and an answer that holds a schema: cc chat.c -ltokenmill && ./a.out MODEL */
#include <stdio.h>
#include <string.h>
#include "../include/tokenmill.h"

static int add(void *data, const char *arguments, tokenmill_reply *reply) {
  int a = 0, b = 0;
  char found[32];
  ++*(int *)data;
  sscanf(arguments, "{\"a\":%d,\"b\":%d}", &a, &b);
  snprintf(found, sizeof found, "%d", a + b);
  return tokenmill_reply_text(reply, found);
}

static int show(tokenmill_stream *stream) {
  tokenmill_piece piece;
  int more;
  while ((more = tokenmill_next(stream, &piece)) == 1) {
    if (piece.kind == TOKENMILL_TEXT) fputs(piece.text, stdout);
    if (piece.kind == TOKENMILL_CALL) printf("-> %s %s\n", piece.name, piece.text);
    if (piece.kind == TOKENMILL_FOUND) printf("<- %s\n", piece.text);
  }
  puts("");
  if (more < 0) fprintf(stderr, "%s\n", tokenmill_last_error());
  tokenmill_stream_free(stream);
  return more;
}

int main(int argc, char **argv) {
  int calls = 0, failed;
  const char *numbers = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-99,\"maximum\":99},"
    "\"b\":{\"type\":\"integer\",\"minimum\":-99,\"maximum\":99}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}";
  if (argc < 2 || tokenmill_abi_version() != TOKENMILL_ABI) return 2;
  tokenmill_model *model = tokenmill_open(argv[1], "{\"context\": 2048}");
  tokenmill_chat *chat = tokenmill_chat_new(model);
  if (!model || !chat) { fprintf(stderr, "%s\n", tokenmill_last_error()); return 1; }
  tokenmill_model_free(model); /* (the chat keeps what it needs) */
  tokenmill_chat_sampling(chat, "{\"seed\": 1, \"max_tokens\": 100}");
  failed = tokenmill_chat_tool(chat, "add", "The sum of two numbers.", numbers, add, &calls);
  tokenmill_stream *stream = tokenmill_ask(chat, "What is 2 + 3?", NULL);
  failed |= stream ? show(stream) : -1;
  stream = tokenmill_ask(chat, "Two numbers, please.", numbers);
  failed |= stream ? show(stream) : -1;
  stream = tokenmill_ask(chat, "Something long.", NULL);
  tokenmill_piece piece;
  if (stream) tokenmill_next(stream, &piece);
  tokenmill_chat_free(chat);
  tokenmill_stream_free(stream); /* nothing more of it is computed */
  if (tokenmill_open("/nowhere.gguf", NULL) || !strstr(tokenmill_last_error(), "/nowhere.gguf")) return 3;
  return failed ? 1 : 0;
}
