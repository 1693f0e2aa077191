/* This file is the interface by which programs in C, and in every language that can call C, run a model in their own
 * process. It is the server of `fidelio serve` without its socket: a request is the body of one of the server's routes
 * (docs/serving.md), and what is answered has the same bytes.
 *
 *   fidelio_open ──▶ model ── fidelio_ask ──▶ answer ── fidelio_next, until FIDELIO_END ──▶ fidelio_drop
 *                      └───── fidelio_logits ──▶ floats ──▶ fidelio_release
 *   fidelio_close, then fidelio_free
 *
 * Errors. Every function that can fail returns a fidelio_result, and nothing is thrown or ended. After a negative one
 * fidelio_message() is a sentence that names the thing, what was expected, what was found and the remedy. A request that
 * the server refuses is no failure here: its answer has a status of 400 or more, and OpenAI's error object as its text.
 *
 * Threads. Any thread may call any function for any model, at the same time; answers are computed side by side. The
 * exceptions are that one answer is read by one thread at a time, and that fidelio_free and fidelio_drop come last.
 * fidelio_close may be called while others wait: they are told FIDELIO_CLOSED.
 *
 * Processes. Threads do not survive a fork. In a child process that was forked while a model was open, functions with
 * that model return FIDELIO_FORKED, and freeing it does nothing; the child opens a model of its own.
 *
 * Texts are UTF-8. A pointer that is returned stays valid as long as the comment says, and is not the caller's to free.
 */
#ifndef FIDELIO_H
#define FIDELIO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FIDELIO_API __attribute__((visibility("default")))

typedef enum fidelio_result {
  FIDELIO_OK = 0,
  FIDELIO_WAIT = 1,       /* Nothing has come within the time. */
  FIDELIO_END = 2,        /* The answer is over. */
  FIDELIO_REFUSED = -1,   /* Something that was given cannot be used. */
  FIDELIO_NO_MEMORY = -2, /* Memory is full. */
  FIDELIO_CLOSED = -3,    /* The model was closed. */
  FIDELIO_FORKED = -4,    /* The model was opened in another process. */
  FIDELIO_FAULT = -5      /* fidelio has a fault. */
} fidelio_result;

typedef struct fidelio_model fidelio_model;
typedef struct fidelio_answer fidelio_answer;

/* Returns the version, as "0.1.0". */
FIDELIO_API const char* fidelio_version(void);

/* Returns what went wrong in this thread's last call that failed. It is valid until this thread calls again. */
FIDELIO_API const char* fidelio_message(void);

/* Returns the notes and warnings that came since the last call, a line each, as "warning: ...", or "". At most the
 * newest thousand are kept. It is valid until this thread calls it again. */
FIDELIO_API const char* fidelio_notes(void);

/* Opens a model. `words` are those of the command `fidelio serve` about the model: its folder or .gguf file, and options
 * such as "--device", "cuda", "--draft", "auto" (`fidelio serve --help-all`). It returns when the weights are loaded. */
FIDELIO_API fidelio_result fidelio_open(int count, const char* const* words, fidelio_model** model);

/* Sets `text` to a JSON object about the model, valid as long as the model: "name", "context" (tokens), "vocabulary",
 * "family", "parameters", "bytes", "fingerprint", "stop_ids", "chat" (whether there is a template), "certificate" (null,
 * or as docs/json.md has it) and "in_words" (of the certificate, a list of pairs of a title and a sentence). */
FIDELIO_API fidelio_result fidelio_about(fidelio_model* model, const char** text);

/* Asks for an answer: `method` and `path` are those of a route, as "POST" and "/v1/chat/completions". It returns at
 * once. */
FIDELIO_API fidelio_result fidelio_ask(fidelio_model* model, const char* method, const char* path, const char* body,
                                       size_t body_bytes, fidelio_answer** answer);

/* Waits for at most so many milliseconds for the next piece of an answer: all of it or, where "stream" was true, some
 * events of the stream (data: JSON). Returns FIDELIO_OK with a piece, which is valid until the next call for this
 * answer, FIDELIO_WAIT or FIDELIO_END. */
FIDELIO_API fidelio_result fidelio_next(fidelio_answer* answer, int milliseconds, const char** piece, size_t* bytes);

/* Returns the HTTP status of an answer, or 0 before its first piece. */
FIDELIO_API int fidelio_status(const fidelio_answer* answer);

/* Frees an answer. One that is not over is cancelled, as by a client that leaves. NULL is allowed. */
FIDELIO_API void fidelio_drop(fidelio_answer* answer);

/* Computes the logits of every position of a sequence as decoding computes them: FP32, `count` rows of `vocabulary`
 * values, which fidelio_release frees. Calls for one model wait for each other. */
FIDELIO_API fidelio_result fidelio_logits(fidelio_model* model, const int32_t* ids, int64_t count, float** logits,
                                          int64_t* vocabulary);
FIDELIO_API void fidelio_release(float* logits);

/* Ends a model's work and gives its weights back. Calls that wait return FIDELIO_CLOSED, and so do later ones. */
FIDELIO_API fidelio_result fidelio_close(fidelio_model* model);
/* Frees a model, which is closed if it is not yet. Its answers may be dropped before or after. NULL is allowed. */
FIDELIO_API void fidelio_free(fidelio_model* model);

#ifdef __cplusplus
}
#endif

#endif
