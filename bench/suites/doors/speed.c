/* How fast an answer comes through the C library, as one line of JSON: speed MODEL QUESTION TOKENS */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include "tokenmill.h"

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  char sampling[64];
  double begun, first = 0, last = 0;
  uint32_t generated = 0;
  tokenmill_piece piece;
  int more;
  if (argc < 4 || tokenmill_abi_version() != TOKENMILL_ABI) return 2;
  snprintf(sampling, sizeof sampling, "{\"temperature\": 0, \"max_tokens\": %s}", argv[3]);
  tokenmill_model *model = tokenmill_open(argv[1], NULL);
  tokenmill_chat *chat = tokenmill_chat_new(model);
  if (!chat || tokenmill_chat_sampling(chat, sampling)) return fprintf(stderr, "%s\n", tokenmill_last_error()), 1;
  begun = now();
  tokenmill_stream *stream = tokenmill_ask(chat, argv[2], NULL);
  if (!stream) return fprintf(stderr, "%s\n", tokenmill_last_error()), 1;
  while ((more = tokenmill_next(stream, &piece)) == 1) {
    last = now() - begun;
    if (first == 0) first = last;
  }
  if (more < 0) return fprintf(stderr, "%s\n", tokenmill_last_error()), 1;
  tokenmill_stream_tokens(stream, &generated, NULL);
  printf("{\"first_token_s\": %f, \"tok_s\": %f, \"completion_tokens\": %u}\n", first, (generated - 1) / (last - first), generated);
  tokenmill_stream_free(stream);
  tokenmill_chat_free(chat);
  tokenmill_model_free(model);
  return 0;
}
