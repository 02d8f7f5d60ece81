/* tokenmill: language models inside a program. Made by crates/capi/header.sh: not to be edited. */

#ifndef TOKENMILL_H
#define TOKENMILL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 The surface's version: raised when a function changes or goes; new ones do not raise it.
 */
#define TOKENMILL_ABI 1

/*
 Kinds of pieces: what is said.
 */
#define TOKENMILL_TEXT 0

/*
 What the model thinks before.
 */
#define TOKENMILL_REASONING 1

/*
 A tool is called: `name`, and its arguments as JSON in `text`.
 */
#define TOKENMILL_CALL 2

/*
 What that tool found: `name`, and what the model is told in `text`.
 */
#define TOKENMILL_FOUND 3

/*
 A conversation. While an answer to it is made it takes no other question.
 */
typedef struct tokenmill_chat tokenmill_chat;

/*
 A model. Freed, it lives on for the chats and streams that are of it.
 */
typedef struct tokenmill_model tokenmill_model;

/*
 Where a tool says what it found.
 */
typedef struct tokenmill_reply tokenmill_reply;

/*
 An answer as it comes.
 */
typedef struct tokenmill_stream tokenmill_stream;

/*
 A tool: gets what it was offered with, its arguments as JSON, and where to say what it found. 0, or anything
 else where it failed: then its reply is told as an error. It is called on the thread that reads the stream.
 */
typedef int32_t (*tokenmill_tool)(void*, const char*, tokenmill_reply*);

/*
 A piece of an answer. Its texts are valid until the next call with the same stream.
 */
typedef struct {
  /*
   `TOKENMILL_TEXT` and so on.
   */
  int32_t kind;
  /*
   The text; empty, never NULL.
   */
  const char *text;
  /*
   The tool's name; empty for texts, never NULL.
   */
  const char *name;
} tokenmill_piece;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of this library's surface: a program that was compiled with another `TOKENMILL_ABI` must not call it.
 */
uint32_t tokenmill_abi_version(void);

/*
 What the last call of this thread that failed says. Valid until the next call of this thread that fails.
 */
const char *tokenmill_last_error(void);

/*
 Begins a conversation with a model. NULL: it failed.

 # Safety
 The model is one, or NULL.
 */
tokenmill_chat *tokenmill_chat_new(const tokenmill_model *model);

/*
 Frees a conversation. An answer that is being made goes on.

 # Safety
 It was begun here and not freed, or is NULL.
 */
void tokenmill_chat_free(tokenmill_chat *chat);

/*
 Gives a conversation its instructions. 0, or -1: it failed.

 # Safety
 The chat is one or NULL, the text ends with a zero byte.
 */
int32_t tokenmill_chat_system(const tokenmill_chat *chat, const char *instructions);

/*
 Says how answers of a conversation are sampled from now on: NULL, or a JSON object of `temperature`, `top_k`,
 `top_p`, `min_p`, `seed`, `max_tokens`, `stop` and so on. 0, or -1: it failed.

 # Safety
 The chat is one or NULL, the text ends with a zero byte.
 */
int32_t tokenmill_chat_sampling(const tokenmill_chat *chat,
                                const char *sampling);

/*
 Says whether the first answer to each question must call a tool: 0 or 1. 0, or -1: it failed.

 # Safety
 The chat is one or NULL.
 */
int32_t tokenmill_chat_must_call(const tokenmill_chat *chat, int32_t must);

/*
 Offers a tool by the JSON Schema of its arguments, in the place of any of its name. `data` comes back with every
 call and must live as long as the chat and its streams. 0, or -1: it failed.

 # Safety
 The chat is one or NULL, texts end with a zero byte, `tool` may be called with `data` on any thread that reads a
 stream of this chat.
 */
int32_t tokenmill_chat_tool(const tokenmill_chat *chat,
                            const char *name,
                            const char *about,
                            const char *schema,
                            tokenmill_tool tool,
                            void *data);

/*
 Says what a tool found, in the place of anything said before. 0, or -1: it failed.

 # Safety
 The reply is the one that the tool was called with, and that call has not ended.
 */
int32_t tokenmill_reply_text(tokenmill_reply *reply, const char *found);

/*
 Asks in a conversation. `schema` is NULL, or a JSON Schema that the answer holds: then its text is a value of
 it. NULL: it failed.

 # Safety
 The chat is one or NULL, texts end with a zero byte.
 */
tokenmill_stream *tokenmill_ask(const tokenmill_chat *chat,
                                const char *question,
                                const char *schema);

/*
 Goes on with a text. `sampling` is as of `tokenmill_chat_sampling`. NULL: it failed.

 # Safety
 The model is one or NULL, texts end with a zero byte.
 */
tokenmill_stream *tokenmill_complete(const tokenmill_model *model,
                                     const char *prompt,
                                     const char *sampling);

/*
 Waits for the next piece. 1: it is in `piece`; 0: the answer is whole; -1: it failed, and ends with that.

 # Safety
 The stream is one or NULL, `piece` may be written to or is NULL.
 */
int32_t tokenmill_next(const tokenmill_stream *stream,
                       tokenmill_piece *piece);

/*
 Tokens that were generated, and with `prompt` those that were read; of an answer that is whole. 0, or -1: it failed.

 # Safety
 The stream is one or NULL, numbers may be written to or are NULL.
 */
int32_t tokenmill_stream_tokens(const tokenmill_stream *stream,
                                uint32_t *generated,
                                uint32_t *prompt);

/*
 Frees an answer; nothing more of it is computed.

 # Safety
 It was begun here and not freed, or is NULL.
 */
void tokenmill_stream_free(tokenmill_stream *stream);

/*
 Opens the model of a path or a name, fetched if it is not here. `options` is NULL or a JSON object of `context`,
 `threads`, `memory_bytes`, `device`, `parallel`, `queue`, `kv`, `mode`, `fetch`. NULL: it failed.

 # Safety
 Texts end with a zero byte.
 */
tokenmill_model *tokenmill_open(const char *name,
                                const char *options);

/*
 Frees a model.

 # Safety
 It was opened here and not freed, or is NULL.
 */
void tokenmill_model_free(tokenmill_model *model);

/*
 Most tokens of prompt and answer together; 0: it failed.

 # Safety
 The model is one, or NULL.
 */
uint32_t tokenmill_context(const tokenmill_model *model);

/*
 Numbers in a vector of `tokenmill_embed`; 0: it failed.

 # Safety
 The model is one, or NULL.
 */
uint32_t tokenmill_width(const tokenmill_model *model);

/*
 A vector for each text, one behind another into `out`, which has room for `room` numbers. 0, or -1: it failed.

 # Safety
 The model is one or NULL, `texts` has `count` texts, `out` has room for `room` numbers.
 */
int32_t tokenmill_embed(const tokenmill_model *model,
                        const char *const *texts,
                        size_t count,
                        float *out,
                        size_t room);

/*
 How much each of `count` documents has to do with a query, into `out`. 0, or -1: it failed.

 # Safety
 The model is one or NULL, `query` is a text, `documents` has `count` texts, `out` room for as many numbers.
 */
int32_t tokenmill_rerank(const tokenmill_model *model,
                         const char *query,
                         const char *const *documents,
                         size_t count,
                         float *out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TOKENMILL_H */
