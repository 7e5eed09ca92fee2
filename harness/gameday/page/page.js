// Shows the newest view of the day, and presses its buttons. Words of a trainer only ever become text.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  // The token stays out of the address bar; a cookie has it. A browser may have pages of several roles: each asks as its own.
  const from = (path, more) => path + "?" + new URLSearchParams({ as: document.body.dataset.role, ...more });
  history.replaceState(null, "", from("/"));
  const say = (id, words) => {
    const node = byId(id);
    if (node && node.textContent !== words) node.textContent = words;
  };
  const make = (name, class_, words) => {
    const node = document.createElement(name);
    if (class_) node.className = class_;
    if (words !== undefined) node.textContent = words;
    return node;
  };
  const lasted = (s) => {
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
    const minutes = Math.floor(s / 60);
    if (minutes < 60) return minutes + " min " + Math.floor(s % 60) + " s";
    return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  };
  const clock = (s) => Math.floor(s / 60) + ":" + String(Math.floor(s % 60)).padStart(2, "0");
  const count = (n) => n.toLocaleString("en");
  const kept = {}; // what was drawn last, so that nothing is made anew without need
  const changed = (name, value) => {
    const text = JSON.stringify(value);
    if (kept[name] === text) return false;
    kept[name] = text;
    return true;
  };

  const blocked = (view) => view.blocked && view.state !== "over"; // then nothing is injected anyhow
  const figures = (view) => {
    say("title", view.title);
    say("run", view.run_id);
    say("elapsed", lasted(view.elapsed_s) + (view.state === "preparing" ? " of preparing" : " into the day"));
    say("step", count(view.step) + (view.steps ? " of " + count(view.steps) : ""));
    byId("done").style.width = (view.steps ? Math.min(100, (100 * view.step) / view.steps) : 0) + "%";
    say("furthest", view.step < view.furthest_step ? "step " + count(view.furthest_step) + " was reached before" : "");
    say("phase", view.job_over ? "—" : view.phase);
    const idle = view.standing ? "no step for " + lasted(view.idle_s) : view.steps_go ? "steps are being done" : "";
    say("idle", view.job_over ? "the job is over" : idle);
    say("loss", view.loss === null ? "—" : Number(view.loss).toFixed(4));
    say("committed", view.committed_step ? "last checkpoint: step " + count(view.committed_step) : "no checkpoint yet");
    say("pace", view.steps_per_s === null ? "" : Number(view.steps_per_s.toPrecision(3)) + " steps/s");
    say("wasted", view.wasted || "—");
    const counted = view.counted_s === null ? "" : ", counted " + lasted(view.counted_s) + " ago";
    say("share", view.wasted ? view.wasted_words + counted : "the ledger is being worked out");
    byId("budget-box").hidden = !view.budget.length;
    say("budget", view.budget.map(([words]) => words).join(" · ") + " of the budget");
    byId("spent").style.width = Math.min(100, 100 * Math.max(0, ...view.budget.map(([, share]) => share))) + "%";
    byId("without-fault").hidden = !view.fault_free;
    document.title = (blocked(view) ? "Stopped · " : "") + "Game day · step " + view.step;
  };

  const state = (view) => {
    say("saying", view.saying);
    const name = blocked(view) ? "blocked" : view.state;
    byId("state").className = "state " + (view.verdict ? "judged " + view.verdict : name);
    byId("report").hidden = !view.report;
    say("report-path", view.report);
    for (const button of document.querySelectorAll("[data-when]")) button.hidden = button.dataset.when !== name;
    const over = view.state === "over";
    const idle = { inject: view.state !== "acting" || view.blocked, skip: over, stop: over || view.blocked };
    const stop = document.querySelector("button.stop");
    if (stop) {
      stop.firstChild.textContent = blocked(view) ? "Stopped " : "Stop ";
      stop.querySelector(".hint").textContent = blocked(view) ? "nothing is injected" : "heal everything";
    }
    for (const button of document.querySelectorAll(".main-buttons [data-act]")) {
      if (button.dataset.act in idle) button.disabled = idle[button.dataset.act];
    }
    for (const part of document.querySelectorAll(".main-buttons")) part.hidden = view.state === "preparing";
    if (view.job_over) nothingMore();
  };
  const nothingMore = () => {
    for (const part of document.querySelectorAll(".main-buttons button, #note-form button, #note-form input")) part.disabled = true;
    for (const part of document.querySelectorAll(".main-buttons")) part.hidden = true;
  };

  const ranks = (view) => {
    const all = view.ranks;
    if (!changed("ranks", [all, view.job_over])) return;
    const ms = (value) => (value === null || value === undefined ? "—" : value.toFixed(0) + " ms");
    let words = (all.count ? count(all.count) : "No") + (all.count === 1 ? " rank" : " ranks") + (all.count ? "" : " yet");
    if (all.step.length) words += ". Step: lowest " + count(all.step[0]) + ", highest " + count(all.step[2]);
    if (all.step_ms.length) words += ". Step time: fastest " + ms(all.step_ms[0]) + ", median " + ms(all.step_ms[1]) + ", slowest " + ms(all.step_ms[2]);
    say("ranks-words", words + (all.whole ? "." : ". Below: those that are furthest behind."));
    const most = Math.max(1, ...all.listed.map((each) => each.step_ms || 0));
    const highest = all.step.length ? all.step[2] : 0;
    byId("ranks").replaceChildren(...all.listed.map((each) => {
      const late = highest - each.step > 1;
      const still = each.standing && !view.job_over;
      const box = make("div", "rank" + (still ? " standing" : late ? " late" : ""));
      const behind = late ? count(highest - each.step) + " behind" : ms(each.step_ms);
      const pace = still ? "no step for " + Math.floor(each.idle_s) + " s" : behind;
      box.append(make("b", "", String(each.rank)), make("span", "", pace));
      box.title = "rank " + each.rank + " on " + each.node + ": step " + each.step + ", " + pace;
      const bar = make("div", "bar-line");
      const fill = make("i");
      fill.style.width = (100 * (each.step_ms || 0)) / most + "%";
      bar.append(fill);
      box.append(bar);
      return box;
    }));
  };

  const MOMENTS = { injected: "acts", effect: "its effect is measured", recovered: "recovered", healed: "undone" };
  const schedule = (view) => {
    if (!changed("schedule", view.scenes)) return;
    byId("schedule").replaceChildren(...view.scenes.map((scene) => {
      const item = make("li", scene.state);
      const head = make("div", "head", ["scenario", "rest"].includes(scene.kind) ? scene.what : scene.kind + ": " + scene.what);
      head.append(make("span", "word", scene.state));
      item.append(head);
      const list = make("ul");
      for (const act of scene.acts) {
        for (const fault of act.faults) {
          const line = make("li", fault.at_work ? "at-work" : "", (scene.acts.length > 1 ? act.name + ": " : "") + fault.what);
          line.append(make("span", "word", fault.at_work ? "at work" : act.outcome || (MOMENTS[fault.moment] || fault.moment)));
          list.append(line);
        }
        if (act.runbook) {
          const line = make("li");
          const link = make("a", "", "runbook of " + act.name);
          if (/^https?:\/\//.test(act.runbook)) link.href = act.runbook;
          link.rel = "noreferrer noopener";
          link.target = "_blank";
          line.append(link);
          list.append(line);
        }
      }
      if (list.children.length) item.append(list);
      return item;
    }));
    const list = byId("schedule");
    const now = list.querySelector(".now"); // stays in sight where the schedule scrolls in its box, with some of what comes next
    if (now) {
      const top = now.offsetTop - list.offsetTop; // its first line stays in sight, too
      list.scrollTop = Math.min(top, top + now.offsetHeight + 60 - list.clientHeight);
    }
  };

  const PHASES = JSON.parse(document.body.dataset.phases); // those that the style sheet of the reports has a colour for
  const shape = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const bar = (phase, x, width, height) =>
    shape("rect", { x, y: 0, width, height, class: "p-" + (PHASES.includes(phase) ? phase : "unknown") });
  const outage = (view) => {
    const box = byId("outage-box");
    if (!box) return;
    const parts = view.outage.filter(([phase]) => phase !== "running"); // the fault may act on while steps are done again
    const total = parts.reduce((sum, each) => sum + each[2], 0);
    const told = view.outage_open && !view.job_over ? "No progress for " + lasted(total) : "The last outage took " + lasted(total);
    say("outage-title", parts.length ? told : "No outage so far"); // its place is kept: nothing moves when one begins
    if (!changed("outage", parts)) return;
    let at = 0;
    byId("outage").replaceChildren(...parts.map(([phase, words, s]) => {
      const part = bar(phase, at, Math.max(s, total / 500), 1); // a short one is seen, too
      const title = shape("title", {});
      title.textContent = words + ": " + lasted(s);
      part.append(title);
      at += Math.max(s, total / 500);
      return part;
    }));
    byId("outage").setAttribute("viewBox", "0 0 " + Math.max(at, 0.001) + " 1");
    const sums = new Map();
    for (const [phase, words, s] of parts) sums.set(phase, [words, (sums.has(phase) ? sums.get(phase)[1] : 0) + s]);
    byId("outage").setAttribute("aria-label", [...sums.values()].map(([words, s]) => words + " " + lasted(s)).join(", ") || "No outage so far");
    byId("outage-words").replaceChildren(...[...sums].map(([phase, [words, s]]) => {
      const item = make("li");
      const key = shape("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" });
      key.append(bar(phase, 0, 16, 12));
      item.append(key, make("span", "", words + " " + lasted(s)));
      return item;
    }));
  };

  const feed = (view) => {
    if (!changed("feed", view.feed)) return;
    const lines = view.feed.length ? view.feed : [{ at_s: null, kind: "", text: "Nobody has said anything yet." }];
    byId("feed").replaceChildren(...lines.map((each) => {
      const item = make("li", each.at_s === null ? "soft" : "");
      if (each.at_s !== null) item.append(make("time", "", clock(each.at_s)));
      item.append(make("span", each.kind === "alert" ? "alert" : "", each.text));
      return item;
    }));
  };

  let node = "";
  const tabs = (view) => {
    if (!node && view.nodes.length) node = view.nodes[0];
    if (!changed("tabs", [view.nodes, node])) return;
    const shown = view.nodes.slice(0, 64);
    byId("tabs").replaceChildren(...shown.map((name) => {
      const button = make("button", "", name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(name === node));
      button.addEventListener("click", () => { node = name; kept.tabs = ""; tabs(view); tail(); });
      return button;
    }));
  };
  const tail = async () => {
    if (!node || document.hidden) return;
    const answer = await fetch(from("/log", { node })).catch(() => null);
    if (!answer || !answer.ok) return;
    const box = byId("log");
    const text = await answer.text();
    if (box.textContent === text) return;
    const atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 30;
    box.textContent = text;
    if (atEnd) box.scrollTop = box.scrollHeight;
  };
  const chart = async () => {
    if (document.hidden) return;
    const answer = await fetch(from("/chart", { narrow: byId("chart").clientWidth < 900 ? 1 : 0 })).catch(() => null);
    if (!answer || !answer.ok) return;
    const text = await answer.text();
    if (!text || !changed("chart", text)) return;
    const drawn = new DOMParser().parseFromString('<body>' + text + "</body>", "text/html").querySelectorAll("svg");
    byId("chart").replaceChildren(...[...drawn].map((each) => document.importNode(each, true)));
  };

  const show = (view) => {
    if (!view) return;
    for (const part of [figures, state, ranks, schedule, outage, feed, tabs]) part(view);
  };

  // On a phone Stop has a row of its own below what scrolls: always in reach, and never over another button.
  const phone = matchMedia("(max-width: 700px)");
  const placeStop = () => {
    const stop = document.querySelector("button.stop");
    if (stop) byId(phone.matches ? "stop-bar" : "main-buttons").prepend(stop);
  };
  phone.addEventListener("change", placeStop);
  placeStop();

  let stream = null;
  let heard = 0;
  const linked = (on, text, why) => {
    byId("link").className = "link" + (on ? "" : " " + (why || "off"));
    say("link", text);
  };
  const listen = () => {
    if (stream) stream.close();
    stream = new EventSource(from("/events"));
    heard = Date.now();
    stream.addEventListener("message", (event) => {
      heard = Date.now();
      linked(true, "live");
      show(JSON.parse(event.data));
    });
    stream.addEventListener("over", () => {
      stream.close();
      stream = null;
      linked(false, "the game day is over", "still");
      nothingMore();
    });
    stream.addEventListener("error", () => {
      linked(false, "connection lost, trying again");
      if (stream && stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(listen, 2000); }
    });
  };
  listen();
  setInterval(() => { if (stream && Date.now() - heard > 20000) listen(); }, 5000);
  setInterval(tail, 2000);
  setInterval(chart, 3000);
  setTimeout(() => { tail(); chart(); }, 600);

  const SAID = {
    stop: "Stopped: everything is being healed.",
    lift: "The stop is lifted.",
    continue: "Noted: continue.",
    skip: "Noted: skip.",
    inject: "Noted: inject now.",
    detected: "Noted: detected.",
    acknowledged: "Noted: acknowledged.",
    mitigated: "Noted: mitigated.",
    note: "Your note is kept.",
  };
  let fading = 0;
  const tell = (words, refused) => {
    const answer = byId("answer");
    clearTimeout(fading);
    answer.className = "answer " + (refused ? "refused" : "noted");
    answer.textContent = words;
    fading = setTimeout(() => say("answer", ""), refused ? 15000 : 5000);
  };
  const press = async (action) => {
    const note = byId("note");
    const text = ["stop", "lift", "continue", "skip", "inject"].includes(action) ? "" : note.value;
    byId("answer").className = "answer";
    say("answer", ""); // so that the same words are heard again
    try {
      const reply = await fetch(from("/act"), {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ action, text, who: byId("who").value.trim() }),
      });
      const { refused } = await reply.json();
      tell(refused || SAID[action], Boolean(refused));
      if (!refused && text && note.value === text) note.value = "";
    } catch {
      tell("The page cannot be reached; nothing was done.", true);
    }
  };

  // Who acts says their name first; only Stop does not wait for it.
  let waiting = ""; // the action that a name is missing for
  const named = (action) => {
    const who = byId("who");
    const missing = action !== "stop" && !who.value.trim();
    waiting = missing ? action : "";
    who.setAttribute("aria-invalid", String(missing));
    say("who-why", missing ? "Write your name first, then press Enter." : "");
    if (missing) who.focus();
    return !missing;
  };
  const act = (action) => { if (named(action)) press(action); };
  for (const button of document.querySelectorAll("[data-act]")) button.addEventListener("click", () => act(button.dataset.act));
  const form = byId("note-form");
  if (form) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (byId("note").value.trim()) act("note");
    });
    byId("who").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !waiting) return;
      event.preventDefault();
      act(waiting);
    });
  }
})();
