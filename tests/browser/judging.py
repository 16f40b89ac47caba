"""What is asked of every page. Each function returns what is wrong, in words; an empty list is a pass."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, ViewportSize

from tests.browser.watching import Watched

WEIGHT = 150_000
"""Bytes that a first visit may transfer."""
WIDTHS = (1280, 390)
"""CSS pixels: a laptop's and a telephone's."""
_STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules that look at colours: all that a second colour scheme can break."""
_RUN_AXE = """
async ([type, values, known]) => {
  // What is behind a dialog has been looked at.
  const place = document.querySelector('dialog[open]') ?? {exclude: known.map(selector => [selector])};
  const found = await axe.run(place, {runOnly: {type, values}, resultTypes: ['violations']});
  return found.violations.flatMap(rule => rule.nodes.map(
    node => `${rule.id}: ${node.target.join(' ')}: ${node.failureSummary.replace(/\\s+/g, ' ')}`));
}
"""
_FOCUSABLE = """
() => {
  const seen = new Set();
  const wanted = 'a[href], button, input, select, textarea, summary, audio[controls], [tabindex], [contenteditable]';
  const names = [];
  let number = 0;
  for (const element of document.querySelectorAll(wanted)) {
    if (element.tabIndex < 0 || element.disabled || element.closest('[inert]')) continue;
    if (!element.checkVisibility({visibilityProperty: true})) continue;
    if (element.type === 'radio') {  // a group is one stop: its chosen one, or either end
      const group = `${element.form?.id ?? ''} ${element.name}`;
      if (seen.has(group)) { element.dataset.tested = names.length - 1; continue; }
      seen.add(group);
    }
    element.dataset.tested = number++;
    const text = (element.getAttribute('aria-label') || element.innerText || element.name || '').trim();
    names.push(`${element.tagName.toLowerCase()} "${text.slice(0, 40)}"`);
  }
  return names;
}
"""
_LOOK = """
  const look = element => {
    const style = getComputedStyle(element);
    return [style.outlineStyle, style.outlineWidth, style.outlineColor, style.boxShadow, style.borderColor,
            style.backgroundColor, style.textDecorationLine].join(' ');
  };
"""
_WALK = (
    "() => {"
    + _LOOK
    + """
  const stop = () => {
    const element = document.activeElement;
    if (!element || element === document.body || element === document.documentElement) return null;
    const box = element.getBoundingClientRect();
    const onScreen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
    return {number: element.dataset.tested ?? null, look: look(element), onScreen,
            name: element.tagName.toLowerCase() + ' "' + (element.innerText ?? '').trim().slice(0, 40) + '"'};
  };
  document.body.tabIndex = -1;
  document.body.focus();  // Tab goes on from the last place that had it, even after blur()
  document.body.removeAttribute('tabindex');
  const left = [];  // the body, and each stop as the next press of the key leaves it
  const leave = () => left.push(stop());
  addEventListener('keydown', leave, true);
  window.tabWalk = {
    stops: () => [...left.slice(1), stop()],
    end: () => { removeEventListener('keydown', leave, true); document.activeElement?.blur(); },
  };
}
"""
)
_LOOK_UNFOCUSED = (
    "numbers => {"
    + _LOOK
    + """
  window.tabWalk.end();
  const elements = numbers.map(number => document.querySelector(`[data-tested="${number}"]`));
  return elements.map(element => element ? look(element) : null);
}
"""
)
_WIDER = """
() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room) return [];
  const wide = [...document.body.querySelectorAll('*')].filter(
    element => element.getBoundingClientRect().right > room + 1);
  return wide.slice(0, 5).map(element => `${element.tagName.toLowerCase()}.${element.className}`);
}
"""


async def judged(tab: Watched, axe: str, known: tuple[str, ...] = ()) -> list[str]:
    """Everything that is wrong with the page that the tab shows after a first visit. `axe`: axe-core's source.
    `known`: selectors of what is the same on a page that was judged; axe-core leaves it out."""
    found = without_trouble(tab) + await fits(tab)
    await tab.stand_still()
    found += await accessible(tab.page, axe, known=known) + await operable_by_keyboard(tab)
    return found + await dialogs_work(tab.page, axe)


def without_trouble(tab: Watched) -> list[str]:
    """Console, content security policy, other hosts, failed requests, and weight. A first visit just ended."""
    heavy = [f"weight: {tab.received:,} bytes"] if tab.received > WEIGHT else []
    return [*tab.troubles, *heavy]


async def accessible(
    page: Page, axe: str, schemes: tuple[str, ...] = ("light", "dark"), known: tuple[str, ...] = ()
) -> list[str]:
    """WCAG 2.2 A and AA, as far as axe-core can tell."""
    found = []
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(axe)  # as a debugger's code: no content security policy holds it
    rules, colours = ["tag", _STANDARD, known], ["rule", _COLOURS, known]
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found += [f"{scheme}: {text}" for text in await page.evaluate(_RUN_AXE, rules)]
        rules = colours
    await page.emulate_media(color_scheme="light")
    return found


async def operable_by_keyboard(tab: Watched) -> list[str]:
    """Tab reaches everything that can be operated, shows where it is, and gets out again."""
    page = tab.page
    names: list[str] = await page.evaluate(_FOCUSABLE)
    await page.evaluate(_WALK)
    stops: list[dict[str, Any] | None] = []
    # More presses than names: what scrolls in a frame of its own is a stop, too.
    for presses in (len(names) + 1, 9, len(names) + 10):
        await tab.press_tab(presses)
        stops = await page.evaluate("() => window.tabWalk.stops()")
        if None in stops:
            break
    reached: dict[int, str] = {}
    wrong = []
    for stop in stops:
        if stop is None:
            break
        if not stop["onScreen"]:
            wrong.append(f"keyboard: focus is out of sight at {stop['name']}")
        if stop["number"] is not None:
            reached[int(stop["number"])] = stop["look"]
    else:
        wrong.append("keyboard: Tab never leaves the page")
    unfocused = await page.evaluate(_LOOK_UNFOCUSED, list(reached))
    for (number, focused), look in zip(reached.items(), unfocused, strict=True):
        if look == focused:
            wrong.append(f"keyboard: focus is not visible on {names[number]}")
    missed = [name for number, name in enumerate(names) if number not in reached]
    return [*wrong, *(f"keyboard: Tab does not reach {name}" for name in missed)]


async def fits(tab: Watched) -> list[str]:
    """Nothing has to be scrolled sideways, but for what scrolls in a frame of its own. Loads the page anew where
    it does not fit at once: charts measure their place then."""
    size = tab.page.viewport_size
    assert size is not None
    wrong = []
    for width in WIDTHS:
        if tab.page.viewport_size != (place := ViewportSize(width=width, height=size["height"])):
            await tab.page.set_viewport_size(place)
        if await tab.page.evaluate(_WIDER):
            await tab.visit(tab.page.url)
        if wide := await tab.page.evaluate(_WIDER):
            wrong.append(f"width {width}: {', '.join(wide)} does not fit")
    await tab.page.set_viewport_size(size)
    return wrong


async def dialogs_work(page: Page, axe: str) -> list[str]:
    """Each opens with the keyboard, takes the focus, is accessible itself, and Escape closes it and returns the
    focus to where it was."""
    wrong = []
    for opener in await page.locator("[data-dialog]:visible").all():
        name = f"dialog of “{(await opener.inner_text()).strip()}”"
        await opener.focus()
        await page.keyboard.press("Enter")
        if not await page.evaluate("() => !!document.activeElement.closest('dialog[open]')"):
            wrong.append(f"{name}: does not open, or does not take the focus")
            continue
        wrong += [f"{name}: {text}" for text in await accessible(page, axe, ("light",))]
        await page.keyboard.press("Escape")
        if await page.locator("dialog[open]").count():
            wrong.append(f"{name}: Escape does not close it")
        elif not await opener.evaluate("element => element === document.activeElement"):
            wrong.append(f"{name}: the focus does not return")
    return wrong
