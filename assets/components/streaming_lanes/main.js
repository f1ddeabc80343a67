/* Streaming in three lanes: the model emits tokens, the server sends messages, the screen draws characters.
 *
 * DATA (built by pages/views/streaming_data.py)
 * {
 *   stream: {id, admitted, tokens: [{t, hex, text, special, half}]},   a real run: seconds since it was submitted, the token's
 *                                       bytes, and whether it ends inside a character
 *   controls: {send: "token"|"count"|"time", n, ms, draw: "asis"|"smooth"|"end", cps, delay, jitter},   what the learner has set; delay
 *                                       and jitter in ms
 *   seq,                                see Agreement in shared.js
 *   dice: [0…1, …],                     one number per message for the simulated jitter, drawn by Python, so that both agree
 *   lang, text: {…}                     number formats; the strings under TEXT
 * }
 * Sends setStateValue("controls", {..., seq}) when the learner has set something (not while dragging).
 * The stages are those of core/streaming.py, number for number; a test compares them.
 */

/* TEXT  aria play pause back forward position speed speed_real speed_slower {n} speed_faster {n} · event_of {i} {n}
 *   send send_token send_count send_time dial_n {n} dial_ms {n} · draw draw_asis draw_smooth draw_end dial_cps {n}
 *   network delay {n} jitter {n} simulated measured computed
 *   lane_model lane_server lane_screen prefill {n} · held held_none half {n} · screen
 *   fig_first fig_last fig_itl fig_gap fig_messages · same {first} · later {first} {last} · never · numbers col_message col_sent col_arrived
 *   col_tokens col_text · nothing */

// ---- the stages: pure functions of the run and the settings (core/streaming.py says why) ----

function bytesOf(hex) { return Uint8Array.from(hex.match(/../g) || [], (b) => parseInt(b, 16)); }

/** (moment, tokens so far) of each time the server looks at what has gathered. */
function cutsOf(tokens, { send, n, ms }) {
  const times = tokens.map((x) => x.t), last = times.length - 1;
  if (!times.length) return [];
  if (send !== "time") {
    const every = send === "count" ? n : 1, cuts = [];
    for (let stop = every; stop <= last; stop += every) cuts.push([times[stop - 1], stop]);
    return [...cuts, [times[last], times.length]];
  }
  const period = ms / 1000, cuts = [[times[0], 1]];
  for (let i = 1; i < times.length; i++) {
    const look = times[0] + Math.ceil((times[i] - times[0]) / period - 1e-9) * period, moment = Math.min(Math.max(look, times[i]), times[last]);
    if (cuts[cuts.length - 1][0] === moment) cuts.pop();
    cuts.push([moment, i + 1]);
  }
  return cuts;
}

/** Messages of whole characters; a cut inside a character waits for the next one. */
function messagesOf(tokens, controls) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }), messages = [];
  let start = 0, fed = 0, text = "";
  for (const [moment, stop] of cutsOf(tokens, controls)) {
    for (; fed < stop; fed++) if (!tokens[fed].special) text += decoder.decode(bytesOf(tokens[fed].hex), { stream: true });
    if (stop === tokens.length) text += decoder.decode();
    if (text || stop === tokens.length) { messages.push({ sent: moment, arrived: moment, start, stop, text }); start = stop; text = ""; }
  }
  return messages;
}

/** The simulated network: no message overtakes another. */
function deliver(messages, { delay, jitter }, dice) {
  let previous = 0;
  return messages.map((m, i) => ({ ...m, arrived: (previous = Math.max(previous, m.sent + delay / 1000 + (jitter / 1000) * (dice[i] ?? 0))) }));
}

/** [moment, characters shown from then on]. */
function drawsOf(messages, { draw, cps }) {
  const draws = [];
  let shown = 0;
  if (draw === "end") {
    for (const m of messages) shown += Array.from(m.text).length;
    return shown ? [[messages[messages.length - 1].arrived, shown]] : [];
  }
  for (const m of messages) {
    const count = Array.from(m.text).length;
    if (draw === "asis") { if (count) draws.push([m.arrived, (shown += count)]); continue; }
    for (let k = 0; k < count; k++) draws.push([Math.max(m.arrived, draws.length ? draws[draws.length - 1][0] + 1 / cps : 0), ++shown]);
  }
  return draws;
}

function computeStages(s) {
  const { tokens } = s.data.stream, c = s.controls;
  const messages = deliver(messagesOf(tokens, c), c, s.data.dice), draws = drawsOf(messages, c);
  const plain = drawsOf(messagesOf(tokens, { send: "token" }), { draw: "asis" });
  const moments = new Set([...tokens.map((x) => x.t), ...messages.map((m) => m.arrived)]);
  if (draws.length) moments.add(draws[draws.length - 1][0]);
  const events = [...moments].sort((a, b) => a - b);
  const whole = Array.from(messages.map((m) => m.text).join(""));
  return { messages, draws, plain, events, whole, end: Math.max(events[events.length - 1] || 0, 0.001) };
}

// ---- building ----

function buildLanes(root) {
  const q = (selector) => root.querySelector(selector);
  const s = { root, canvas: q("canvas"), knobs: q(".knobs"), held: q(".held"), screen: q(".screen"), shown: q(".shown"), caret: q(".caret"), bubble: q(".bubble"),
    figs: q(".figs"), sentence: q(".say"), table: q("table"), numbers: q(".numbers"), controls: null, link: new Agreement(), colours: null };
  s.player = new Player({ onChange: (p, why) => { if (s.stages) drawLanes(s, why); } });
  s.say = announcer(root);
  s.tip = tooltip(root);
  bindKeys(root, s.player);
  bindCanvas(s);
  watch(root, () => { s.colours = null; if (s.stages) drawLanes(s, "data"); });
  s.numbers.ontoggle = () => drawTable(s);
  return s;
}

function bindCanvas(s) {
  const moment = (event) => (event.offsetX / Math.max(1, s.geometry?.span || s.canvas.clientWidth)) * s.stages.end;
  const position = (event) => s.stages.events.filter((e) => e <= moment(event) + 1e-9).length;
  s.canvas.onpointerdown = (event) => { if (!s.stages) return; s.canvas.setPointerCapture(event.pointerId); s.dragging = true; s.player.go(position(event), { commit: false }); };
  s.canvas.onpointerup = s.canvas.onpointercancel = (event) => { if (s.dragging) { s.dragging = false; s.player.go(event.type === "pointerup" ? position(event) : s.player.position); } };
  s.canvas.onpointerleave = () => s.tip.hide();
  s.canvas.onpointermove = (event) => {
    if (!s.stages) return;
    if (s.dragging) return s.player.go(position(event), { commit: false });
    const found = event.pointerType === "touch" ? null : describe(s, moment(event), event.offsetY);
    if (found) s.tip.show(s.canvas.offsetLeft + event.offsetX, s.canvas.offsetTop + event.offsetY, ...found); else s.tip.hide();
  };
}

/** What is under the pointer: the token of the pass, or the message nearest in time. */
function describe(s, moment, y) {
  const { tokens } = s.data.stream, { messages } = s.stages, lane = s.geometry?.lanes.findIndex((top) => y >= top && y <= top + s.geometry.tall);
  const mono = (text) => h("div", { style: { fontFamily: "var(--mono)" } }, text);
  if (lane === 0) {
    const token = tokens.find((x) => x.t >= moment);
    return token ? [s.f.ms(token.t * 1000), mono(showToken(token.text, token.hex, token))] : null;
  }
  if (lane !== 1 || !messages.length) return null;
  const m = messages.reduce((best, x) => (Math.abs(x.sent - moment) < Math.abs(best.sent - moment) ? x : best));
  return [`${s.f.ms(m.sent * 1000)} · ${t(s.text.in_message, { n: m.stop - m.start })}`, mono(showToken(m.text))];
}

function seg(s, name, options) {
  const buttons = options.map((value) => h("button", { type: "button", onclick: () => change(s, { [name]: value }, true), dataset: { value } }, s.text[`${name}_${value}`]));
  const node = h("div", { class: "seg", role: "group", "aria-label": s.text[name] }, ...buttons);
  s.refresh.push(() => buttons.forEach((b) => b.setAttribute("aria-pressed", b.dataset.value === s.controls[name])));
  return node;
}

function dial(s, name, label, low, high, step, when) {
  const input = h("input", { type: "range", min: low, max: high, step, class: "dial-" + name });
  const value = h("span", {});
  input.oninput = () => change(s, { [name]: +input.value }, false);
  input.onchange = () => change(s, { [name]: +input.value }, true);
  const node = h("div", { class: "dial" }, input, value);
  s.refresh.push(() => {
    const words = t(s.text[label], { n: s.f.int(s.controls[name]) });
    input.value = s.controls[name]; value.textContent = words; input.setAttribute("aria-label", words); input.setAttribute("aria-valuetext", words);
    node.hidden = when ? !when(s.controls) : false;
  });
  return node;
}

function buildKnobs(s) {
  s.refresh = [];
  const simulated = h("em", { class: "kind" }, s.text.simulated);
  s.knobs.replaceChildren(
    h("div", { class: "knob" }, h("b", {}, s.text.send), seg(s, "send", ["token", "count", "time"]),
      h("div", {}, dial(s, "n", "dial_n", 2, 12, 1, (c) => c.send === "count"), dial(s, "ms", "dial_ms", 50, 1000, 50, (c) => c.send === "time"))),
    h("div", { class: "knob" }, h("b", {}, s.text.draw), seg(s, "draw", ["asis", "smooth", "end"]), h("div", {}, dial(s, "cps", "dial_cps", 5, 200, 5, (c) => c.draw === "smooth"))),
    h("div", { class: "knob network" }, h("b", {}, s.text.network, simulated), dial(s, "delay", "delay", 0, 500, 10), dial(s, "jitter", "jitter", 0, 500, 10)),
  );
}

/** A setting moved: everything is computed again at once; Python hears of it when the learner lets go. */
function change(s, values, commit) {
  Object.assign(s.controls, values);
  restage(s);
  if (!commit) return;
  s.send("controls", s.link.number(s.controls));
}

/** New stages under the same clock: the playhead stays where it was in time. */
function restage(s) {
  const now = s.stages ? clockOf(s) : Infinity, atEnd = !s.stages || s.player.atEnd;
  s.stages = computeStages(s);
  const { events } = s.stages;
  s.refresh.forEach((fn) => fn());
  const position = atEnd ? events.length : events.filter((e) => e <= now + 1e-9).length, before = position ? events[position - 1] : 0;
  s.player.fraction = s.player.playing && position < events.length ? Math.max(0, Math.min(1, (now - before) / (events[position] - before))) : 0;
  s.player.update({ count: events.length, position, duration: (i) => events[i] - (i ? events[i - 1] : 0) });
  drawFigures(s);
  drawTable(s);
}

function clockOf(s) {
  const { events } = s.stages, { position, fraction } = s.player, done = position ? events[position - 1] : 0;
  return position < events.length ? done + fraction * (events[position] - done) : done;
}

// ---- drawing ----

/** Stripes that can be seen on the bright orange of the dark theme too: they are the second cue of decode. */
function stripes(c) { return +(/\d+/.exec(c.card)?.[0] ?? 255) < 128 ? "rgba(0,0,0,.3)" : "rgba(255,255,255,.22)"; }

function drawCanvas(s, now) {
  const { ctx, w } = fitCanvas(s.canvas), c = (s.colours ||= palette(s.root)), unit = rem(), st = s.stages, { admitted } = s.data.stream;
  if (w < 8) return; // the page is being left
  const edge = 0.75 * unit, sx = (seconds) => 1 + (seconds / st.end) * (w - 2 - edge), tall = 2.125 * unit, step = 4.625 * unit, lanes = [0, 1, 2].map((i) => 1.25 * unit + i * step);
  s.geometry = { lanes, tall, span: w - 2 - edge };
  ctx.font = `${0.8125 * unit}px ${c.sans}`; ctx.textBaseline = "alphabetic";
  const seen = (moment) => (moment <= now + 1e-9 ? 1 : 0.22);
  drawLinks(ctx, c, s, sx, lanes, tall, seen);
  drawModelLane(ctx, c, s, sx, lanes[0], tall, now, admitted);
  drawServerLane(ctx, c, s, sx, lanes[1], tall, seen, unit);
  drawScreenLane(ctx, c, s, sx, lanes[2], tall, now, w);
  ctx.globalAlpha = 1;
  [["lane_model", c["decode-ink"]], ["lane_server", c["cache-ink"]], ["lane_screen", c["new-ink"]]].forEach(([key, colour], i) => {
    const y = lanes[i] - 0.375 * unit; // on a strip of the card, so that the lines stay behind the words
    ctx.fillStyle = c.card; ctx.fillRect(0, y - 0.875 * unit, ctx.measureText(s.text[key]).width + 6, 1.1875 * unit);
    ctx.fillStyle = colour; ctx.fillText(s.text[key], 0, y);
  });
  axis(ctx, c, s, sx, w, lanes[2] + tall, unit);
  if (now < s.stages.end - 1e-9) { // at the end it would stand on the last message
    ctx.fillStyle = c.ink; ctx.fillRect(Math.max(0, Math.min(w - 2, sx(now) - 1)), lanes[0] - 3, 2, lanes[2] + tall - lanes[0] + 6);
  }
  s.canvas.setAttribute("aria-label", `${s.text.aria}: ${t(s.text.event_of, { i: s.player.position, n: s.player.count })}, ${s.f.ms(now * 1000)}`);
}

/** From each token down to its message, and from each message to the screen. */
function drawLinks(ctx, c, s, sx, lanes, tall, seen) {
  const { tokens } = s.data.stream;
  ctx.lineWidth = 1;
  for (const m of s.stages.messages) {
    for (let i = m.start; i < m.stop; i++) line(ctx, c.wait, seen(m.sent), sx(tokens[i].t), lanes[0] + tall, sx(m.sent), lanes[1]);
    ctx.setLineDash([3, 3]);
    line(ctx, c.wait, seen(m.arrived), sx(m.sent), lanes[1] + tall, sx(m.arrived), lanes[2]);
    ctx.setLineDash([]);
  }
}

function line(ctx, colour, alpha, x0, y0, x1, y1) { ctx.globalAlpha = alpha * 0.8; ctx.strokeStyle = colour; ctx.beginPath(); ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); ctx.stroke(); ctx.globalAlpha = 1; }

function drawModelLane(ctx, c, s, sx, top, tall, now, admitted) {
  const { tokens } = s.data.stream, decode = hatch(ctx, c.decode, { gap: 5, paper: stripes(c) });
  const block = (from, to, fill, alpha) => { const a = sx(from), b = sx(to), gap = Math.min(0.75, (b - a) * 0.12); ctx.globalAlpha = alpha; ctx.fillStyle = fill; ctx.beginPath(); ctx.roundRect(a + gap, top, Math.max(0.75, b - a - 2 * gap), tall, Math.max(0, Math.min(4, (b - a) / 4))); ctx.fill(); ctx.globalAlpha = 1; };
  tokens.forEach((token, i) => {
    const from = i ? tokens[i - 1].t : admitted, fill = i ? decode : c.prefill;
    block(from, token.t, fill, 0.2);
    if (now > from) block(from, Math.min(now, token.t), fill, 1);
    if (!tokens[i].half) return;
    // Half a character: a dashed frame, the second cue.
    ctx.globalAlpha = token.t <= now + 1e-9 ? 1 : 0.3; const frame = [sx(from) + 2, top + 1.5, Math.max(2, sx(token.t) - sx(from) - 4), tall - 3];
    ctx.strokeStyle = c.card; ctx.lineWidth = 3; ctx.strokeRect(...frame);
    ctx.strokeStyle = c.new; ctx.lineWidth = 2; ctx.setLineDash([4, 3]); ctx.strokeRect(...frame); ctx.setLineDash([]); ctx.globalAlpha = 1;
  });
}

function drawServerLane(ctx, c, s, sx, top, tall, seen, unit) {
  const { messages } = s.stages;
  messages.forEach((m, i) => {
    const room = i + 1 < messages.length ? sx(messages[i + 1].sent) - sx(m.sent) : 3 * unit, before = i ? sx(m.sent) - sx(messages[i - 1].sent) : 3 * unit;
    const n = m.stop - m.start, radius = Math.max(2, Math.min(0.6875 * unit, room / 2 - 1, before / 2 - 1) * 1), x = sx(m.sent), y = top + tall / 2;
    ctx.globalAlpha = seen(m.sent); ctx.fillStyle = c.cache; ctx.beginPath(); ctx.roundRect(x - radius, y - Math.max(radius, 0.5 * unit), 2 * radius, 2 * Math.max(radius, 0.5 * unit), Math.min(radius, 6)); ctx.fill();
    if (radius > 0.4375 * unit) { ctx.fillStyle = c.card; ctx.textAlign = "center"; ctx.font = `650 ${0.75 * unit}px ${c.sans}`; ctx.fillText(String(n), x, y + 0.28 * unit); ctx.textAlign = "start"; ctx.font = `${0.8125 * unit}px ${c.sans}`; }
    ctx.globalAlpha = 1;
  });
}

/** How much of the answer is on the screen: a staircase that the playhead fills. */
function drawScreenLane(ctx, c, s, sx, top, tall, now, w) {
  const { draws, whole } = s.stages, bottom = top + tall, y = (n) => bottom - (n / Math.max(1, whole.length)) * tall;
  ctx.fillStyle = c.soft; ctx.fillRect(0, top, w, tall);
  const area = (until, alpha) => {
    ctx.globalAlpha = alpha; ctx.fillStyle = c.new; ctx.beginPath(); ctx.moveTo(0, bottom);
    let level = bottom, end = 0;
    for (const [moment, n] of draws) { if (moment > until + 1e-9) break; ctx.lineTo(sx(moment), level); level = y(n); ctx.lineTo(sx(moment), level); end = moment; }
    const right = until === Infinity ? w : Math.min(w, sx(Math.max(end, until)));
    ctx.lineTo(right, level); ctx.lineTo(right, bottom); ctx.closePath(); ctx.fill(); ctx.globalAlpha = 1;
  };
  area(Infinity, 0.2);
  area(now >= s.stages.end - 1e-9 ? Infinity : now, 0.85);
}

function axis(ctx, c, s, sx, w, bottom, unit) {
  const end = s.stages.end, ticks = axisTicks(end, w, ctx.measureText("0,000 ms").width + 1.75 * unit), big = end >= 2;
  ctx.fillStyle = c.muted;
  for (const v of ticks) {
    const label = big ? s.f.number(v, ticks[1] % 1 ? 1 : 0) + "\u00a0s" : s.f.int(v * 1000) + "\u00a0ms", size = ctx.measureText(label).width;
    ctx.fillRect(sx(v), bottom + 5, 1, 5);
    ctx.fillText(label, v === 0 ? 0 : Math.max(0, Math.min(sx(v) - size / 2, w - size)), bottom + 10 + 0.9375 * unit);
  }
}

function drawBoxes(s, now) {
  const st = s.stages, { tokens } = s.data.stream, emitted = tokens.filter((x) => x.t <= now + 1e-9).length;
  const sent = st.messages.filter((m) => m.sent <= now + 1e-9).reduce((n, m) => Math.max(n, m.stop), 0);
  const shown = st.draws.reduce((n, d) => (d[0] <= now + 1e-9 ? d[1] : n), 0), key = `${sent}:${emitted}`;
  if (s.heldFor !== key) {
    s.heldFor = key;
    const waiting = tokens.slice(sent, emitted).map((token, k) => chip(token, { phase: "decode", class: token.half ? "half" : "" }));
    s.held.querySelector(".chips").replaceChildren(...(waiting.length ? waiting : [h("span", { class: "none" }, s.text.held_none)]));
  }
  const text = st.whole.slice(0, shown).join("");
  if (s.shown.textContent !== text) { s.shown.textContent = text; s.bubble.scrollTop = s.bubble.scrollHeight; }
  s.caret.classList.toggle("off", shown >= st.whole.length);
  return shown;
}

function figure(value, label, kind) { return h("div", { class: "fig" }, h("b", {}, value), h("span", {}, label, h("em", { class: "kind" }, kind))); }
function average(values) { return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; }
function gaps(values) { return values.slice(1).map((v, i) => v - values[i]); }

function drawFigures(s) {
  const { text, f, stages: st } = s, { tokens } = s.data.stream, show = (x) => (x === null || x === undefined ? "–" : f.ms(x * 1000));
  const itl = average(gaps(tokens.map((x) => x.t))), gap = average(gaps(st.messages.map((m) => m.arrived)));
  const first = st.draws.length ? st.draws[0][0] : null, last = st.draws.length ? st.draws[st.draws.length - 1][0] : null;
  const far = s.controls.delay || s.controls.jitter ? text.simulated : text.computed;
  s.figs.replaceChildren(figure(show(first), text.fig_first, far), figure(show(last), text.fig_last, far), figure(show(itl), text.fig_itl, text.measured), figure(show(gap), text.fig_gap, far), figure(f.int(st.messages.length), text.fig_messages, text.computed));
  s.root.dataset.first = first ?? ""; s.root.dataset.last = last ?? ""; s.root.dataset.gap = gap ?? ""; s.root.dataset.messages = st.messages.length;
  if (first === null) { s.sentence.textContent = text.never; return; }
  const late = [first - st.plain[0][0], last - st.plain[st.plain.length - 1][0]].map((x) => Math.max(0, x)), words = { first: f.ms(late[0] * 1000), last: f.ms(late[1] * 1000) };
  s.sentence.textContent = t(late[0] < 0.0005 && late[1] < 0.0005 ? text.same : text.later, { ...words, at: f.ms(last * 1000) });
}

function drawTable(s) {
  if (!s.numbers.open || !s.stages) return;
  const { text, f } = s, ms = (x) => f.number(x * 1000, 1);
  const head = ["col_message", "col_sent", "col_arrived", "col_tokens", "col_text"].map((key) => h("th", { scope: "col" }, text[key]));
  const rows = s.stages.messages.map((m, i) => h("tr", {}, h("td", {}, f.int(i + 1)), h("td", {}, ms(m.sent)), h("td", {}, ms(m.arrived)), h("td", {}, f.int(m.stop - m.start)), h("td", {}, showToken(m.text))));
  s.table.replaceChildren(h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
}

function drawLanes(s, why) {
  if (why === "play" && reducedMotion() && s.drawn === s.player.position) return;
  s.drawn = s.player.position;
  const now = clockOf(s);
  drawCanvas(s, now);
  const shown = drawBoxes(s, now);
  if (why === "commit") s.say(`${t(s.text.event_of, { i: s.player.position, n: s.player.count })}, ${s.f.ms(now * 1000)}: ${s.stages.whole.slice(Math.max(0, shown - 40), shown).join("")}`);
}

export default function (component) {
  const { data, parentElement, setStateValue } = opened(component);
  const s = instance(parentElement, buildLanes);
  if (!data) return;
  const words = JSON.stringify(data.text), fresh = data.stream.id !== s.id;
  Object.assign(s, { data, id: data.stream.id, f: formats(data.lang), text: data.text, send: setStateValue, colours: null, heldFor: null });
  if (fresh) { s.player.stop(); s.stages = null; }
  if (s.link.isNews(data.controls, data.seq)) s.controls = { ...data.controls };
  if (words !== s.words) {
    s.words = words;
    s.root.setAttribute("aria-label", data.text.aria);
    buildKnobs(s);
    s.held.querySelector("h2").textContent = data.text.held; s.screen.querySelector("h2").textContent = data.text.screen; s.bubble.setAttribute("aria-label", data.text.screen);
    s.numbers.querySelector("summary").textContent = data.text.numbers; s.numbers.querySelector(".scroll").setAttribute("aria-label", data.text.numbers);
    const valueText = (p) => t(s.text.event_of, { i: p.position, n: p.count });
    if (!s.bar) s.root.querySelector(".controls").append((s.bar = playerBar(s.player, data.text, { speeds: [0.1, 0.25, 0.5, 1, 4], valueText }))); else s.bar.setText(data.text);
  }
  restage(s);
}
