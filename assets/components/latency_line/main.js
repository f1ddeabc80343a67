/* One request on one time line, and every latency figure with its formula filled in.
 *
 * DATA (built by pages/views/latency_data.py)
 * {
 *   mode: "run" | "card",        a real run that can be played, or an editable card whose moments can be dragged and typed
 *   id,                          names the run: a new one resets the player
 *   admitted, tokens: [s, …],    seconds since the request was submitted
 *   labels: [[text, hex], …],    the tokens' text, for the run (may be empty)
 *   network_ms,                  simulated way there and back (run only)
 *   seq,                         see Agreement in shared.js
 *   unit: "token" | "message",   what the moments are: a server elsewhere may only tell when messages came
 *   kind: "measured" | "computed",
 *   lang, text: {…}              number formats; the strings under TEXT
 * }
 * Sends setStateValue("moments" or "network", {admitted, tokens, network_ms, seq}) when the learner has let go.
 * The arithmetic is that of core/latency.py; a test compares them.
 */

/* TEXT  aria play pause back forward position speed speed_real speed_slower {n} speed_faster {n} · n_of {i} {n}
 *   submitted queue prefill token_n {i} gap_n {i} network · network_dial · measured computed simulated
 *   f_ttft f_queue f_prefill f_network f_itl f_median f_p95 f_tpot f_with_first f_e2e f_speed f_speed_after   names
 *   w_…                              the same in words, one line each; wm_… where the moments are messages
 *   admitted_at token_at {i} add remove reset · none {what} · per_s {n} */

// ---- arithmetic (core/latency.py) ----

function gapsOf(times) { return times.slice(1).map((v, i) => v - times[i]); }
function percentile(values, percent) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b), place = ((sorted.length - 1) * percent) / 100, low = Math.floor(place), high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

function figuresOf(admitted, tokens, network) {
  const n = tokens.length, first = n ? tokens[0] : null, last = n ? tokens[n - 1] : null, gaps = gapsOf(tokens), ttft = n ? first + network : null, e2e = n ? last + network : null;
  const tpot = n > 1 ? (last - first) / (n - 1) : null;
  return {
    n, gaps, ttft, e2e, tpot, queue: n ? admitted : null, prefill: n ? first - admitted : null, network: n ? network : null, itl: n > 1 ? gaps.reduce((a, b) => a + b, 0) / gaps.length : null,
    median: percentile(gaps, 50), p95: percentile(gaps, 95), with_first: n ? e2e / n : null, speed: e2e ? n / e2e : null, speed_after: tpot ? 1 / tpot : null, first, last,
  };
}

// ---- building ----

function buildLine(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, canvas: q("canvas"), handles: q(".handles"), edit: q(".edit"), controls: q(".controls"), formulas: q(".formulas"), legend: q(".legend"), link: new Agreement(), colours: null };
  s.player = new Player({ onChange: (p, why) => { if (s.tokens) drawLine(s, why); } });
  s.say = announcer(root);
  s.tip = tooltip(q(".line"));
  bindKeys(root, s.player, { skip: (target) => s.mode === "card" || target.classList.contains("handle") });
  bindCanvas(s);
  watch(root, () => { s.colours = null; if (s.tokens) drawLine(s, "data"); });
  return s;
}

function bindCanvas(s) {
  const at = (event) => (event.offsetX / Math.max(1, s.canvas.clientWidth)) * s.end;
  const arrived = (event) => s.tokens.filter((x) => x + s.network <= at(event) + 1e-9).length;
  const runs = () => s.tokens && s.mode === "run";
  s.canvas.onpointerdown = (event) => { if (!runs()) return; s.canvas.setPointerCapture(event.pointerId); s.dragging = true; s.player.go(arrived(event), { commit: false }); };
  s.canvas.onpointerup = s.canvas.onpointercancel = (event) => { if (s.dragging) { s.dragging = false; s.player.go(event.type === "pointerup" ? arrived(event) : s.player.position); } };
  s.canvas.onpointerleave = () => s.tip.hide();
  s.canvas.onpointermove = (event) => {
    if (!runs()) return;
    if (s.dragging) return s.player.go(arrived(event), { commit: false });
    const i = s.tokens.findIndex((x) => x + s.network >= at(event));
    if (i < 0 || event.pointerType === "touch") return s.tip.hide();
    const [text, hex] = s.data.labels[i] || ["", ""], gap = i ? s.tokens[i] - s.tokens[i - 1] : s.tokens[0] + s.network;
    s.tip.show(event.offsetX, s.canvas.offsetTop + 10, `${t(s.text.token_n, { i: i + 1 })} · ${seconds(s, s.tokens[i] + s.network)} (+${seconds(s, gap)})`, text ? h("div", { style: { fontFamily: "var(--mono)" } }, showToken(text, hex)) : "");
  };
}

/** Seconds on a card as they are written (0.50 s), those of a run as people say them (87 ms). */
function seconds(s, x, digits = 2) { return x === null || x === undefined ? "–" : s.mode === "card" ? s.f.number(x, digits) + "\u00a0s" : s.f.ms(x * 1000); }
function bare(s, x) { return s.mode === "card" ? s.f.number(x, 2) : s.f.ms(x * 1000); }

// ---- the card: moments that can be dragged, typed, added and removed ----

function moments(s) { return [s.admitted, ...s.tokens]; }

/** Moment i (0 is “admitted”) moves to x, never past its neighbours. */
function move(s, i, x, commit) {
  const all = moments(s), low = i ? all[i - 1] : 0, high = i + 1 < all.length ? all[i + 1] : Infinity;
  const value = Math.round(Math.max(low, Math.min(high, x)) * 1000) / 1000;
  if (i) s.tokens[i - 1] = value; else s.admitted = value;
  refreshCard(s, commit);
}

function refreshCard(s, commit) {
  if (commit || !s.tokens.length) s.end = spanOf(s);
  drawLine(s, "data");
  if (commit) tell(s, "moments");
}

/** Tells Python what the learner has set. */
function tell(s, name) {
  s.send(name, s.link.number({ admitted: s.admitted, tokens: [...s.tokens], network_ms: Math.round(s.network * 1000) }));
}

function spanOf(s) {
  const last = (s.tokens[s.tokens.length - 1] ?? s.admitted) + s.network;
  if (s.mode === "run") return Math.max(last, 1e-3);
  return Math.max(1, Math.ceil(last * 1.12 * 10) / 10);
}

function buildCard(s) {
  const n = s.tokens.length;
  s.handles.replaceChildren(...moments(s).map((_, i) => handleOf(s, i)));
  const field = (i) => {
    const input = h("input", { class: "input", type: "number", min: 0, step: 0.01, inputmode: "decimal" });
    input.onchange = () => { const x = parseFloat(input.value); if (Number.isFinite(x)) move(s, i, x, true); else refreshCard(s, true); };
    return h("label", {}, i ? t(s.text.token_at, { i }) : s.text.admitted_at, input);
  };
  s.fields = moments(s).map((_, i) => field(i));
  const button = (label, act, off) => h("button", { class: "btn", type: "button", onclick: act, disabled: off }, label);
  const add = () => { const last = s.tokens[n - 1] ?? s.admitted, step = n > 1 ? last - s.tokens[n - 2] || 0.1 : 0.1; s.tokens.push(Math.round((last + step) * 1000) / 1000); buildCard(s); refreshCard(s, true); };
  const remove = () => { s.tokens.pop(); buildCard(s); refreshCard(s, true); };
  const reset = () => { s.admitted = 0; s.tokens = [0.5, 0.6, 0.72, 0.81]; buildCard(s); refreshCard(s, true); };
  s.edit.replaceChildren(...s.fields, button("+ " + s.text.add, add, n >= 12), button("− " + s.text.remove, remove, n === 0), button(s.text.reset, reset));
}

function handleOf(s, i) {
  const node = h("button", { type: "button", role: "slider", class: "handle" + (i === 0 ? " admitted" : i === 1 ? " first" : ""), "aria-orientation": "horizontal", "aria-valuemin": 0 });
  const at = (event) => { const box = s.canvas.getBoundingClientRect(); return Math.round(((event.clientX - box.left) / box.width) * s.end * 100) / 100; };
  node.onpointerdown = (event) => { node.setPointerCapture(event.pointerId); node.classList.add("dragging"); node.focus(); event.preventDefault(); };
  node.onpointermove = (event) => { if (node.classList.contains("dragging")) move(s, i, at(event), false); };
  node.onpointerup = node.onpointercancel = (event) => { if (!node.classList.contains("dragging")) return; node.classList.remove("dragging"); move(s, i, event.type === "pointerup" ? at(event) : moments(s)[i], true); };
  node.onkeydown = (event) => {
    const steps = { ArrowLeft: -0.01, ArrowDown: -0.01, ArrowRight: 0.01, ArrowUp: 0.01, PageDown: -0.1, PageUp: 0.1, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    const end = i + 1 < moments(s).length ? 1e9 : s.end - moments(s)[i];
    move(s, i, moments(s)[i] + Math.min(steps[event.key], end), true);
    event.preventDefault(); event.stopPropagation();
  };
  return node;
}

function placeCard(s) {
  moments(s).forEach((x, i) => {
    const node = s.handles.children[i], label = i ? t(s.text.token_at, { i }) : s.text.admitted_at;
    node.style.left = `${(x / s.end) * 100}%`;
    node.setAttribute("aria-label", label); node.setAttribute("aria-valuenow", x); node.setAttribute("aria-valuemax", Math.max(s.end, x)); node.setAttribute("aria-valuetext", seconds(s, x));
    const input = s.fields[i].querySelector("input");
    if (s.root.getRootNode().activeElement !== input) input.value = x.toFixed(2).replace(/(\.\d\d)0+$/, "$1");
  });
}

// ---- drawing ----

/** Stripes that can be seen on the bright orange of the dark theme too: they are the second cue of decode. */
function stripes(c) { return +(/\d+/.exec(c.card)?.[0] ?? 255) < 128 ? "rgba(0,0,0,.3)" : "rgba(255,255,255,.22)"; }

function clockOf(s) {
  const { position, fraction } = s.player, moment = (i) => (i < 0 ? 0 : s.tokens[i] + s.network), done = moment(position - 1);
  if (s.mode === "card") return Infinity;
  return position < s.tokens.length ? done + fraction * (moment(position) - done) : Math.max(done, s.end);
}

function drawCanvas(s, now) {
  const { ctx, w } = fitCanvas(s.canvas), c = (s.colours ||= palette(s.root)), unit = rem(), sx = (x) => (x / s.end) * (w - 1), top = 2.125 * unit, tall = 2.125 * unit;
  if (w < 8) return; // the page is being left
  ctx.font = `${0.8125 * unit}px ${c.sans}`; ctx.textBaseline = "alphabetic";
  const half = s.network / 2, shift = s.network, { tokens } = s;
  const fills = { prefill: c.prefill, decode: hatch(ctx, c.decode, { gap: 5, paper: stripes(c) }), wait: hatch(ctx, c["wait-soft"], { gap: 6, paper: c.wait }), network: hatch(ctx, c["cache-soft"], { gap: 4, paper: c.cache }) };
  const block = (from, to, kind) => {
    if (to - from <= 0) return;
    const paint = (until, alpha) => { const a = sx(from), b = sx(until), gap = Math.min(0.75, (b - a) * 0.12); ctx.globalAlpha = alpha; ctx.fillStyle = fills[kind]; ctx.beginPath(); ctx.roundRect(a + gap, top, Math.max(0.75, b - a - 2 * gap), tall, Math.max(0, Math.min(4, (b - a) / 4))); ctx.fill(); ctx.globalAlpha = 1; };
    paint(to, 0.22);
    if (now > from) paint(Math.min(now, to), 1);
  };
  block(0, half, "network");
  block(half, s.admitted + half, "wait");
  if (tokens.length) {
    block(s.admitted + half, tokens[0] + half, s.data.unit === "message" ? "wait" : "prefill"); // a client cannot tell queue from prefill
    block(tokens[0] + half, tokens[0] + shift, "network");
    gapsOf(tokens).forEach((_, i) => block(tokens[i] + shift, tokens[i + 1] + shift, "decode"));
  }
  brackets(ctx, c, s, sx, w, unit, top, tall);
  drawAxis(ctx, c, s, sx, w, top + tall + (s.mode === "card" ? 3.25 : 2.25) * unit, unit);
  if (Number.isFinite(now) && s.mode === "run") { ctx.fillStyle = c.ink; ctx.fillRect(Math.max(0, Math.min(w - 2, sx(now) - 1)), top - 3, 2, tall + 6); }
}

/** ├── TTFT ──┤ above, the current gap and E2E below; a label that does not fit beside its bracket is left out. */
function brackets(ctx, c, s, sx, w, unit, top, tall) {
  const shown = s.mode === "card" ? s.tokens.length : s.player.position;
  if (!shown) return;
  const bracket = (from, to, y, label, colour, below = false) => {
    const a = sx(from), b = sx(to), size = ctx.measureText(label).width;
    ctx.strokeStyle = colour; ctx.fillStyle = colour; ctx.lineWidth = 1.5; ctx.globalAlpha = 1;
    ctx.beginPath(); ctx.moveTo(a, y - 4); ctx.lineTo(a, y + 4); ctx.moveTo(a, y); ctx.lineTo(b, y); ctx.moveTo(b, y - 4); ctx.lineTo(b, y + 4); ctx.stroke();
    ctx.fillText(label, Math.max(0, Math.min((a + b) / 2 - size / 2, w - size)), below ? y + unit : y - 0.4375 * unit);
  };
  const first = s.tokens[0] + s.network, last = s.tokens[shown - 1] + s.network;
  bracket(0, first, top - 0.5 * unit, `TTFT ${seconds(s, first)}`, c["prefill-ink"]);
  if (shown > 1) {
    const before = s.tokens[shown - 2] + s.network, label = t(s.text.gap_n, { i: shown - 1 }) + ": " + seconds(s, last - before), size = ctx.measureText(label).width, ttft = ctx.measureText(`TTFT ${seconds(s, first)}`).width;
    const room = sx(first) / 2 + ttft / 2 < Math.min((sx(before) + sx(last)) / 2 - size / 2, w - size) - 10;
    bracket(before, last, top - 0.5 * unit, room ? label : "", c["decode-ink"]);
  }
  // On the card the handles hang here, so the bracket goes lower and its label below it.
  bracket(0, last, top + tall + (s.mode === "card" ? 1.75 : 1.5) * unit, `E2E ${seconds(s, last)}`, c.muted, s.mode === "card");
}

function drawAxis(ctx, c, s, sx, w, y, unit) {
  const label = (v) => (s.mode === "card" ? s.f.number(v, 1) + "\u00a0s" : s.end >= 2 ? s.f.number(v, ticks[1] % 1 ? 1 : 0) + "\u00a0s" : s.f.int(v * 1000) + "\u00a0ms");
  const ticks = axisTicks(s.end, w, ctx.measureText("0,000 ms").width + 1.75 * unit);
  ctx.fillStyle = c.muted;
  for (const v of ticks) { const words = label(v), size = ctx.measureText(words).width; ctx.fillRect(Math.min(sx(v), w - 1), y, 1, 5); ctx.fillText(words, v === 0 ? 0 : Math.max(0, Math.min(sx(v) - size / 2, w - size)), y + 5 + 0.9375 * unit); }
}

/** Each row: name, in words, filled with this run's numbers, result. */
function rowsOf(s, g) {
  const b = (x) => bare(s, x), n = s.f.int(g.n), gaps = s.f.int(g.n - 1), far = s.network > 0 ? "simulated" : s.data.kind, own = s.data.kind, end = g.n ? b(g.last + s.network) : "", start = g.n ? b(g.first + s.network) : "";
  const rate = (x) => (x === null ? "–" : t(s.text.per_s, { n: s.f.number(x, x < 10 ? 2 : 1) })), fine = (x) => seconds(s, x, 4);
  const rows = [["ttft", `${start} − ${b(0)}`, seconds(s, g.ttft), far, g.ttft]];
  if (s.data.unit !== "message") rows.push(["queue", "", seconds(s, g.queue), own, g.queue, true], ["prefill", "", seconds(s, g.prefill), own, g.prefill, true]);
  if (s.network > 0) rows.push(["network", "", seconds(s, g.network), "simulated", g.network, true]);
  rows.push(["itl", g.n > 1 ? (g.n <= 5 ? `(${g.gaps.map(b).join(" + ")}) / ${gaps}` : `(${b(g.last)} − ${b(g.first)}) / ${gaps}`) : "", fine(g.itl), own, g.itl], ["median", "", fine(g.median), own, g.median, true], ["p95", "", fine(g.p95), own, g.p95, true],
    ["tpot", g.n > 1 ? `(${end} − ${start}) / (${n} − 1)` : "", fine(g.tpot), own, g.tpot], ["with_first", g.n ? `${end} / ${n}` : "", fine(g.with_first), far, g.with_first, true],
    ["e2e", `${end} − ${b(0)}`, seconds(s, g.e2e), far, g.e2e], ["speed", g.n ? `${n} / ${end}` : "", rate(g.speed), far, g.speed], ["speed_after", g.n > 1 ? `(${n} − 1) / (${end} − ${start})` : "", rate(g.speed_after), own, g.speed_after, true]);
  return rows;
}

function drawFormulas(s) {
  const shown = s.mode === "card" ? s.tokens : s.tokens.slice(0, s.player.position), g = figuresOf(s.admitted, shown, s.network), key = JSON.stringify([shown.length, s.network, s.mode === "card" ? moments(s) : 0, s.words]);
  if (key === s.formulasFor) return;
  s.formulasFor = key;
  const word = (name) => (s.data.unit === "message" && s.text["wm_" + name]) || s.text["w_" + name];
  s.formulas.replaceChildren(...rowsOf(s, g).map(([name, filled, result, kind, value, part]) => h("div", { class: "formula" + (part ? " part" : ""), dataset: { name, value: value ?? "" } },
    h("dt", {}, s.text["f_" + name], part ? null : h("small", {}, word(name))),
    h("dd", { class: "filled" }, ...(part ? [h("span", {}, word(name) || ""), filled && value !== null ? h("i", {}, " = " + filled) : ""] : [value === null || value === undefined ? h("span", {}, s.text.none) : h("i", {}, filled)])),
    h("dd", { class: "result" }, result, h("em", { class: "kind" }, s.text[kind])))));
}

/** Names of the blocks that are there. */
function drawLegend(s) {
  const message = s.data.unit === "message", any = s.tokens.length > 0;
  const blocks = [[s.network > 0, "network", s.text.f_network], [message ? any : s.admitted > s.end / 400, "wait", message ? s.text.wm_ttft : s.text.f_queue],
    [any && !message, "prefill", s.text.f_prefill], [s.tokens.length > 1, "decode", message ? s.text.wm_itl : s.text.w_itl_short]];
  const key = s.words + blocks.map((x) => (x[0] ? 1 : 0)).join("");
  if (key === s.legendFor) return;
  s.legendFor = key;
  s.legend.replaceChildren(...blocks.filter((x) => x[0]).map(([, fill, name]) => h("span", {}, h("i", { class: "fill-" + fill }), name)));
}

function drawLine(s, why) {
  if (why === "play" && reducedMotion() && s.drawn === s.player.position) return;
  s.drawn = s.player.position;
  if (s.mode === "card") placeCard(s);
  const now = clockOf(s);
  drawCanvas(s, now);
  drawFormulas(s);
  drawLegend(s);
  const i = s.mode === "card" ? s.tokens.length : s.player.position, words = t(s.text.n_of, { i, n: s.tokens.length });
  s.canvas.setAttribute("aria-label", `${s.text.aria}: ${words}`);
  if (why === "commit" && s.mode === "run") s.say(words + (i ? ", " + seconds(s, s.tokens[i - 1] + s.network) : ""));
}

function networkDial(s) {
  const input = h("input", { type: "range", min: 0, max: 500, step: 10, class: "network" }), value = h("output", {});
  const show = () => { input.value = s.network * 1000; value.textContent = s.f.int(s.network * 1000) + "\u00a0ms"; input.setAttribute("aria-label", s.text.network_dial); input.setAttribute("aria-valuetext", value.textContent); };
  input.oninput = () => { s.network = +input.value / 1000; s.end = spanOf(s); show(); drawLine(s, "data"); };
  input.onchange = () => { s.network = +input.value / 1000; tell(s, "network"); };
  s.showNetwork = show;
  return h("div", { class: "dial" }, h("span", {}, s.text.network_dial, h("em", { class: "kind" }, s.text.simulated)), input, value);
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component);
  const s = instance(parentElement, buildLine);
  if (!data) return;
  const words = JSON.stringify([data.text, data.lang, data.mode]), fresh = data.id !== s.id, { admitted, tokens, network_ms } = data;
  Object.assign(s, { data, id: data.id, mode: data.mode, f: formats(data.lang), text: data.text, send: setStateValue, colours: null });
  if (s.link.isNews({ admitted, tokens, network_ms }, data.seq)) { Object.assign(s, { admitted, tokens: [...tokens], network: network_ms / 1000 }); s.end = spanOf(s); s.formulasFor = null; }
  s.root.classList.toggle("card-mode", s.mode === "card");
  if (words !== s.words) {
    s.words = words; s.formulasFor = null;
    s.root.setAttribute("aria-label", data.text.aria);
    if (s.mode === "run") {
      const valueText = (p) => t(s.text.n_of, { i: p.position, n: p.count });
      if (!s.bar) s.controls.append((s.bar = playerBar(s.player, data.text, { speeds: [0.1, 0.25, 0.5, 1, 4], valueText }))); else s.bar.setText(data.text);
      s.edit.replaceChildren(); s.controls.querySelector(".dial")?.remove();
      if (data.unit !== "message") s.controls.append(networkDial(s));
    }
  }
  if (s.mode === "card" && (s.handles.children.length !== s.tokens.length + 1 || s.cardWords !== words)) { s.cardWords = words; buildCard(s); }
  if (s.mode === "run") {
    s.showNetwork?.();
    if (fresh) s.player.stop();
    const moment = (i) => (i < 0 ? 0 : s.tokens[i] + s.network);
    s.player.update({ count: s.tokens.length, duration: (i) => moment(i) - moment(i - 1), ...(fresh ? { position: s.tokens.length, fraction: 0 } : {}) });
  } else drawLine(s, "data");
}
