/* The run stage: one real run, token by token and pass by pass, in real proportions of time.
 *
 * DATA (built by pages/views/run_stage.py)
 * {
 *   tokens: [{id, text, hex, special, template, group}],   prompt then chosen tokens; hex = the token's bytes; template = added by the chat
 *                                        template; group = index of the whole character it belongs to (equal neighbours are drawn as one)
 *   n_prompt,                            how many of them are the prompt
 *   steps: [{phase, t0, t1,              "prefill" | "decode"; seconds since the request was submitted
 *            token_index,                index in tokens of the token this pass chose; null for a prefill chunk that chooses nothing
 *            n_cached_before, n_input,   positions in the KV cache before; tokens this pass read
 *            kv_bytes,                   bytes in the KV cache after this pass
 *            top: [[text, hex, p, id] × 5], p_chosen, entropy_bits,   of the distribution before sampling settings; [] / null for a chunk
 *            batch}],                    sequences computed together in this pass
 *   admitted,                            seconds from submission to the first pass (waiting); null while waiting
 *   state,                               "recorded" | "waiting" | "running" | "finished" | "cancelled" | "failed"
 *   queue_position,                      1 = next; null when not waiting
 *   step,                                the position to show first (finished passes, 0…steps.length); null = the end. Read when `run` changes
 *   run,                                 a string that names this run: a new one resets the player, the same one only adds steps
 *   lang,                                "en" | "ja": number formats
 *   text: {…}                            the strings listed in TEXT below
 * }
 * Sends setStateValue("step", i) when the learner has chosen a position (not while dragging or playing).
 */

/* TEXT — every key the stage asks for, with its placeholders:
 *   aria                    name of the whole figure, e.g. "One run, pass by pass"
 *   play pause back forward position speed speed_real speed_slower {n} speed_faster {n}
 *   pass_of                 {i} {n}          "pass {i} of {n}"
 *   nothing_yet             before the first pass: "Press Play: the prompt goes in at once."
 *   waiting                 "waiting" (time line label)      queue {n}    "Waiting: {n} in the queue before you" (n may be 0)
 *   prefill                 {n}              "prefill · {n} tokens in one pass"
 *   decode                                   "decode · one token per pass"
 *   prefill_short decode_short               "prefill" "decode" (narrow screens)
 *   passes tokens kv        counter labels: "passes", "tokens", "in the KV cache"
 *   elapsed                 counter label: "since you pressed Run"
 *   measured computed       kinds
 *   candidates              heading: "Likeliest next tokens"    chosen "chosen"    others {n} "all {n} others" …
 *   no_choice               for a prefill chunk: "This pass read part of the prompt and chose nothing."
 *   doubt                   {bits}           "{bits} bits of doubt"
 *   batch                   {n}              "computed together with {n} other requests" (shown when batch > 1)
 *   legend_prefill legend_decode legend_new  chips' legend: "read by prefill", "written by decode", "just chosen"
 *   token_label             {text} {i} {id}  accessible name of a chip: "token {i}: {text}"
 *   template                title of a chip that the chat template added
 *   jump_live               "Follow the run" (button while live and stepped back)
 */
export default function (component) {}
