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
 *   prefill_passes          {n} {passes}     "prefill · {n} tokens in {passes} passes" (a long prompt is read in chunks)
 *   decode                                   "decode · one token per pass"
 *   prefill_short decode_short               "prefill" "decode" (narrow screens)
 *   passes tokens kv        counter labels: "passes", "tokens", "in the KV cache"
 *   elapsed                 counter label: "since you pressed Run"
 *   measured computed       kinds
 *   candidates              heading: "Likeliest next tokens"    chosen "chosen"    others {n} "all {n} others" …
 *   no_pass                 before the first pass, where the candidates will be
 *   no_choice               for a prefill chunk: "This pass read part of the prompt and chose nothing."
 *   doubt                   {bits}           "{bits} bits of doubt"
 *   batch                   {n}              "computed together with {n} other requests" (shown when batch > 1)
 *   legend_prefill legend_decode legend_new  chips' legend: "read by prefill", "written by decode", "just chosen"
 *   token_label             {text} {i} {id}  accessible name of a chip: "token {i}: {text}"
 *   template                title of a chip that the chat template added
 *   jump_live               "Follow the run" (button while live and stepped back)
 */

const CANDIDATES = 5;

function reading(step, now) { return Math.max(0, Math.min(1, (now - step.t0) / Math.max(1e-6, step.t1 - step.t0))); }
function cachedAfter(step) { return step ? step.n_cached_before + step.n_input : 0; }
function isLive(data) { return data.state === "running" || data.state === "waiting"; }

/** Seconds since submission at the player's position. */
function clock(data, player) {
  const done = player.position ? data.steps[player.position - 1].t1 : 0;
  return player.position < data.steps.length ? done + player.fraction * player.duration(player.position) : done;
}

/** What the chip of token j looks like after `position` passes: a class list. */
function chipState(data, position, j) {
  const last = data.steps[position - 1], cached = last ? cachedAfter(last) : data.steps[0]?.n_cached_before ?? 0;
  if (j < cached) return j < (data.steps[0]?.n_cached_before ?? 0) ? "reused" : j < data.n_prompt ? "phase-prefill" : "phase-decode";
  if (last && last.token_index === j) return "phase-new";
  return j < data.n_prompt ? "unread" : "pending";
}

/** The position that shows token j best: just chosen, or just read. */
function positionOf(data, j) {
  const chosen = data.steps.findIndex((s) => s.token_index === j);
  return 1 + (chosen >= 0 ? chosen : Math.max(0, data.steps.findIndex((s) => cachedAfter(s) > j)));
}

function decodeHex(parts) {
  const bytes = parts.join("").match(/../g) || [];
  return new TextDecoder().decode(Uint8Array.from(bytes, (b) => parseInt(b, 16)));
}

function buildStage(root) {
  const q = (selector) => root.querySelector(selector);
  const s = {
    root, pill: q(".pill"), what: q(".what"), live: q(".live"), strip: q(".strip"), chips: q(".chips"), marks: q(".marks"), canvas: q("canvas"),
    figs: q(".figs"), title: q(".next h2"), rows: q(".next .rows"), controls: q(".controls"), groups: [], shown: -1, sent: null, run: null,
  };
  s.player = new Player({ onChange: (p, why) => { if (s.data) drawStage(s, why); } });
  s.tell = settle((value) => { if (value !== s.sent) { s.sent = value; s.send("step", value); } });
  s.say = announcer(root);
  s.tip = tooltip(root);
  s.live.onclick = () => { s.player.go(s.player.count); s.player.following = true; };
  s.strip.onscroll = () => s.strip.classList.toggle("cut", s.strip.scrollTop > 4);
  bindKeys(root, s.player);
  bindTimeline(s);
  watch(root, () => { s.colours = null; if (s.data) drawStage(s, "data"); });
  return s;
}

function bindTimeline(s) {
  const at = (event) => {
    const seconds = (event.offsetX / Math.max(1, s.canvas.clientWidth)) * s.end;
    return s.data.steps.findIndex((step) => seconds < step.t1);
  };
  const pass = (event) => { const i = at(event); return i < 0 ? s.data.steps.length : i + 1; };
  s.canvas.onpointerdown = (event) => { if (!s.data?.steps.length) return; s.canvas.setPointerCapture(event.pointerId); s.dragging = true; s.player.go(pass(event), { commit: false }); };
  s.canvas.onpointerup = s.canvas.onpointercancel = (event) => { if (s.dragging) { s.dragging = false; s.player.go(event.type === "pointerup" ? pass(event) : s.player.position); } };
  s.canvas.onpointerleave = () => s.tip.hide();
  s.canvas.onpointermove = (event) => {
    if (!s.data?.steps.length) return;
    if (s.dragging) return s.player.go(pass(event), { commit: false });
    const i = at(event), step = s.data.steps[i];
    if (!step || event.pointerType === "touch") return s.tip.hide();
    const token = s.data.tokens[step.token_index];
    const line = `${t(s.text.pass_of, { i: i + 1, n: s.data.steps.length })} · ${s.text[step.phase + "_short"]} · ${s.f.ms((step.t1 - step.t0) * 1000)}`;
    s.tip.show(s.canvas.offsetLeft + event.offsetX, s.canvas.offsetTop, line, token ? h("div", { style: { fontFamily: "var(--mono)" } }, showToken(token.text, token.hex, token)) : "");
  };
}

/** Chips, one element per whole character; only what changed since the last data is built again. */
function updateChips(s) {
  const { tokens } = s.data, groups = [];
  tokens.forEach((token, j) => {
    const last = groups[groups.length - 1];
    if (last && token.group !== undefined && token.group !== null && tokens[last[0]].group === token.group) last.push(j); else groups.push([j]);
  });
  const keys = groups.map((g) => g.map((j) => `${j}:${tokens[j].id}`).join());
  let same = 0;
  while (same < keys.length && same < s.groups.length && keys[same] === s.groups[same].key) same++;
  s.groups.splice(same).forEach((g) => g.node.remove());
  for (let i = same; i < groups.length; i++) {
    const parts = groups[i].map((j) => buildChip(s, j));
    const whole = parts.length > 1 ? h("span", { class: "chip whole", "aria-hidden": "true" }, showToken(decodeHex(groups[i].map((j) => tokens[j].hex)))) : null;
    const node = parts.length > 1 ? h("span", { class: "chip-group" }, whole, ...parts) : parts[0];
    s.groups.push({ key: keys[i], node, parts, whole, members: groups[i] });
    s.chips.append(node);
  }
  s.shown = -1;
}

function buildChip(s, j) {
  const token = s.data.tokens[j];
  return chip(token, {
    class: token.template ? "template" : "", title: token.template ? s.text.template : null, dataset: { j },
    onclick: () => s.player.go(positionOf(s.data, j)),
    label: t(s.text.token_label, { i: j + 1, id: token.id, text: showToken(token.text, token.hex, token) }),
  });
}

const STATES = ["reused", "phase-prefill", "phase-decode", "phase-new", "unread", "pending", "reading", "by-prefill", "by-decode"];
function dressChips(s) {
  const { position } = s.player, moving = s.player.playing && s.player.fraction > 0 && !reducedMotion() && s.data.steps[position];
  const key = position * 2 + (moving ? 1 : 0);
  if (s.shown === key) return;
  s.shown = key;
  let current = null;
  for (const group of s.groups) {
    for (const [k, node] of group.parts.entries()) {
      const j = group.members[k];
      let state = chipState(s.data, position, j);
      if (moving && j >= moving.n_cached_before && j < cachedAfter(moving)) state = `reading by-${moving.phase}`;
      node.classList.remove(...STATES);
      node.classList.add(...state.split(" "));
      if (state === "phase-new") node.setAttribute("aria-current", "step"); else node.removeAttribute("aria-current");
      if (state === "phase-new" || state.startsWith("reading")) current = node;
    }
    if (group.whole) {
      group.whole.classList.remove(...STATES);
      const states = group.members.map((j) => chipState(s.data, position, j));
      group.whole.classList.add(states.includes("pending") ? "pending" : states[states.length - 1]);
    }
  }
  follow(s, current);
}

/** Scrolls inside the strip only: the page itself must not move while a run plays. */
function follow(s, node) {
  if (!node) { if (!s.player.position) s.strip.scrollTop = 0; return; }
  const box = s.strip.getBoundingClientRect(), c = node.getBoundingClientRect();
  if (c.bottom > box.bottom - 4) s.strip.scrollTop += c.bottom - box.bottom + c.height;
  else if (c.top < box.top + 4) s.strip.scrollTop += c.top - box.top - c.height;
}

/** A live run's axis grows in doublings, so that it rarely jumps; a finished one fits exactly. */
function axisEnd(data) {
  const last = data.steps.length ? data.steps[data.steps.length - 1].t1 : data.admitted ?? 0;
  if (!isLive(data)) return Math.max(last, 1e-3);
  let end = 0.5;
  while (end < last) end *= 2;
  return end;
}

function drawTimeline(s) {
  const { ctx, w } = fitCanvas(s.canvas), { data, player, f, text } = s;
  if (w < 2) return; // not on screen (the page is being left)
  const c = (s.colours ||= palette(s.root));
  const now = clock(data, player), sx = (seconds) => (seconds / s.end) * (w - 1), unit = rem();
  const top = 1.375 * unit, tall = 2.125 * unit, bottom = top + tall;
  ctx.font = `${0.8125 * unit}px ${c.sans}`; ctx.textBaseline = "alphabetic";
  const fills = { prefill: c.prefill, decode: hatch(ctx, c.decode, { gap: 5, paper: "rgba(255,255,255,.22)" }) };
  const block = (from, to, fill, alpha) => {
    const a = sx(from), b = sx(to), gap = Math.min(0.75, (b - a) * 0.12);
    ctx.globalAlpha = alpha; ctx.fillStyle = fill; ctx.beginPath(); ctx.roundRect(a + gap, top, Math.max(0.75, b - a - 2 * gap), tall, Math.max(0, Math.min(4, (b - a) / 4))); ctx.fill(); ctx.globalAlpha = 1;
  };
  const waited = data.admitted ?? (data.steps[0]?.t0 || 0);
  if (sx(waited) > 2) {
    block(0, waited, hatch(ctx, c["wait-soft"], { gap: 6, paper: c.wait }), 1);
  }
  data.steps.forEach((step) => {
    block(step.t0, step.t1, fills[step.phase], 0.2);
    const until = Math.min(step.t1, now);
    if (until > step.t0) block(step.t0, until, fills[step.phase], 1);
  });
  drawLabels(s, ctx, c, sx, w, top - 0.4375 * unit, waited);
  drawAxis(ctx, c, sx, w, bottom, unit, s.end, f);
  const x = Math.max(1, Math.min(w - 1, sx(now)));
  ctx.fillStyle = c.ink; ctx.fillRect(x - 1, top - 4, 2, tall + 8);
  s.canvas.setAttribute("aria-label", `${text.aria}: ${data.steps.length ? t(text.pass_of, { i: player.position, n: data.steps.length }) + ", " + f.ms(now * 1000) : text.nothing_yet}`);
}

function prefillWords(s) {
  const passes = s.data.steps.filter((step) => step.phase === "prefill").length, n = s.f.int(s.data.n_prompt);
  return passes > 1 ? t(s.text.prefill_passes, { n, passes }) : t(s.text.prefill, { n });
}

/** Labels stand over their blocks, shorten when they would collide, and vanish rather than overlap. */
function drawLabels(s, ctx, c, sx, w, y, waited) {
  const first = s.data.steps.find((x) => x.phase === "prefill"), decode = s.data.steps.find((x) => x.phase === "decode");
  const wide = (label) => ctx.measureText(label).width;
  const entries = [];
  if (waited && sx(waited) > wide(s.text.waiting) + 8) entries.push({ x: 0, colour: c["wait-ink"], long: s.text.waiting, short: s.text.waiting });
  if (first) entries.push({ x: sx(first.t0), colour: c["prefill-ink"], long: prefillWords(s), short: s.text.prefill_short });
  if (decode) entries.push({ x: sx(decode.t0), colour: c["decode-ink"], long: s.text.decode, short: s.text.decode_short });
  for (const form of ["long", "short"]) {
    let edge = 0;
    for (const e of entries) { e.at = Math.max(e.x, edge ? edge + 14 : 0); edge = e.at + wide(e[form]); }
    if (edge > w && form === "long") continue;
    for (const e of entries) { if (e.at + wide(e[form]) > w + 1) continue; ctx.fillStyle = e.colour; ctx.fillText(e[form], e.at, y); }
    return;
  }
}

function drawAxis(ctx, c, sx, w, bottom, unit, end, f) {
  ctx.fillStyle = c.muted;
  const ticks = axisTicks(end, w, ctx.measureText("0,000 ms").width + 1.75 * unit), big = end >= 2;
  const label = (v) => (big ? f.number(v, ticks[1] % 1 ? 1 : 0) + "\u00a0s" : f.int(v * 1000) + "\u00a0ms");
  for (const v of ticks) {
    const x = sx(v), text = label(v), size = ctx.measureText(text).width;
    ctx.fillRect(x, bottom + 5, 1, 5);
    ctx.fillText(text, v === 0 ? 0 : Math.min(x - size / 2, w - size), bottom + 10 + 0.9375 * unit);
  }
}

function figure(label, kind) { return { value: h("b", {}, "–"), node: null, label: h("span"), kind: h("em", { class: "kind" }), spec: { label, kind } }; }

function drawFigures(s, now) {
  const { data, player, text, f } = s;
  if (!s.figures) {
    s.figures = [figure("tokens", "measured"), figure("passes", "measured"), figure("kv", "computed"), figure("elapsed", "measured")];
    s.figs.replaceChildren(...s.figures.map((x) => h("div", { class: "fig" }, x.value, x.label)));
  }
  const last = data.steps[player.position - 1];
  const tokens = last ? Math.max(data.n_prompt, last.token_index === null ? 0 : last.token_index + 1) : data.n_prompt;
  const values = [f.int(data.tokens.length ? tokens : 0), f.int(player.position), f.bytes(last ? last.kv_bytes : 0), f.ms(now * 1000)];
  s.figures.forEach((x, i) => {
    if (x.value.textContent !== values[i]) x.value.textContent = values[i];
    if (x.words !== text) { x.words = text; x.kind.textContent = text[x.spec.kind]; x.label.replaceChildren(text[x.spec.label], x.kind); }
  });
}

function drawCandidates(s) {
  const { data, player, text, f } = s, step = data.steps[player.position - 1];
  if (s.candidatesFor === step && s.candidatesText === text) return;
  s.candidatesFor = step; s.candidatesText = text;
  const doubt = step && step.entropy_bits !== null && step.entropy_bits !== undefined ? t(text.doubt, { bits: f.bits(step.entropy_bits) }) : "\u00a0";
  s.title.replaceChildren(h("span", {}, text.candidates), h("small", {}, doubt));
  if (!step || !step.top.length) {
    s.rows.replaceChildren(h("p", { class: "note" }, step ? text.no_choice : isLive(data) ? "" : text.no_pass));
    return;
  }
  const token = data.tokens[step.token_index], rows = step.top.slice(0, CANDIDATES).map(([word, hex, p, id]) => candidateRow(s, step, showToken(word, hex), p, token && id === token.id));
  const inside = step.top.slice(0, CANDIDATES).some((x) => token && x[3] === token.id);
  const listed = step.top.slice(0, CANDIDATES).reduce((sum, x) => sum + x[2], inside ? 0 : step.p_chosen ?? 0);
  if (!inside && token) rows.push(candidateRow(s, step, showToken(token.text, token.hex, token), step.p_chosen ?? 0, true));
  rows.push(candidateRow(s, step, text.others, Math.max(0, 1 - listed), false, "others"));
  s.rows.replaceChildren(...rows);
}

function candidateRow(s, step, label, p, chosen, extra = "") {
  return h("div", { class: `row by-${step.phase} ${chosen ? "chosen" : ""} ${extra}` },
    h("code", { title: label }, (chosen ? "✓ " : "") + label, chosen ? h("span", { class: "sr" }, ` (${s.text.chosen})`) : ""),
    h("div", { class: "track" }, h("u", { style: { width: `${Math.min(100, p * 100)}%` } })), h("span", {}, s.f.percent(p)));
}

function drawHead(s) {
  const { data, player, text, f } = s, i = player.playing && player.position < data.steps.length ? player.position : player.position - 1, step = data.steps[i];
  const started = data.state === "running" && !data.steps.length; // the first pass is under way: nothing to show of it yet
  const phase = step ? step.phase : data.state === "waiting" ? "waiting" : started ? "prefill" : "";
  s.pill.className = "pill " + phase;
  s.pill.hidden = !phase;
  s.pill.textContent = phase === "waiting" ? text.waiting : phase ? text[phase + "_short"] : "";
  const words = [];
  if (step) {
    words.push(t(text.pass_of, { i: i + 1, n: data.steps.length }), f.ms((step.t1 - step.t0) * 1000));
    if (step.batch > 1) words.push(t(text.batch, { n: f.int(step.batch - 1) }));
  } else if (data.state === "waiting") words.push(t(text.queue, { n: f.int(Math.max(0, (data.queue_position ?? 1) - 1)) }));
  else words.push(started ? "…" : text.nothing_yet);
  s.what.textContent = words.join(" · ");
  s.live.hidden = !(isLive(data) && !player.following);
  s.live.textContent = text.jump_live;
}

function drawStage(s, why) {
  const { data, player } = s, now = clock(data, player);
  if (why === "play" && reducedMotion() && s.drawn === player.position) return;
  s.drawn = player.position;
  s.strip.style.setProperty("--f", data.steps[player.position] ? reading(data.steps[player.position], now).toFixed(3) : 0);
  dressChips(s); drawTimeline(s); drawFigures(s, now); drawCandidates(s); drawHead(s);
  if (why !== "commit") return;
  const value = player.atEnd ? null : player.position, step = data.steps[player.position - 1], token = step && data.tokens[step.token_index];
  s.say(t(s.text.pass_of, { i: player.position, n: data.steps.length }) + (token ? ": " + showToken(token.text, token.hex, token) : ""));
  s.tell(value);
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component);
  const s = instance(parentElement, buildStage);
  if (!data) return;
  const fresh = data.run !== s.run, words = JSON.stringify(data.text) !== s.words;
  Object.assign(s, { data, run: data.run, f: formats(data.lang), send: setStateValue, end: axisEnd(data), colours: null, candidatesFor: null });
  s.root.dataset.state = data.state;  // for whoever watches the page: styles, tests, measurements
  if (words) {
    s.words = JSON.stringify(data.text); s.text = data.text; s.groups.splice(0).forEach((g) => g.node.remove());
    s.root.setAttribute("aria-label", data.text.aria);
    s.marks.replaceChildren(...["prefill", "decode", "new"].map((k) => h("span", {}, h("i", { class: "m-" + k }), data.text["legend_" + k])));
    const valueText = (p) => t(s.text.pass_of, { i: p.position, n: p.count });
    if (!s.bar) s.controls.append((s.bar = playerBar(s.player, data.text, { speeds: [0.02, 0.1, 0.25, 1, 4], valueText }))); else s.bar.setText(data.text);
  }
  if (fresh) { s.tell.cancel(); s.groups.splice(0).forEach((g) => g.node.remove()); s.sent = data.step ?? null; s.strip.scrollTop = 0; }
  updateChips(s);
  const duration = (i) => data.steps[i].t1 - (i ? data.steps[i - 1].t1 : 0);
  const options = { count: data.steps.length, duration, live: isLive(data) };
  if (fresh) {
    s.player.stop();
    // A live run starts at its beginning and plays on; a finished one opens where the link says, or on its end, which
    // already shows something. A link to a step of a run that is still to be made waits for that step in s.goal.
    s.goal = isLive(data) ? data.step ?? null : null;
    Object.assign(s.player, { following: isLive(data) || (data.step ?? null) === null, fraction: 0 });
    options.position = isLive(data) ? 0 : data.step ?? data.steps.length;
  } else if (!isLive(data) && s.goal !== null) {
    if (s.player.following) { s.player.stop(); options.position = s.goal; }
    s.goal = null;
  }
  s.player.update(options);
  if (fresh && isLive(data) && s.player.count) s.player.start();
  return () => { s.tell.cancel(); s.player.stop(); };
}
