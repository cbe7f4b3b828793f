"""A picture that moves: a drawing for each step, with play, one step back or on, and a slider.

It is HTML alone: the drawings are SVG, and each control's script is in its own attribute. So it
works in a saved notebook and on a page without a kernel. Where no script may run, the first step
and the list of all steps in words are left, and a terminal shows that list.
"""

from dataclasses import dataclass
from html import escape

from fa_numba.figures.themes import DARK

# A class for each; on light and on dark pages. A letter on a colour is in the colour PAPER.
LIGHT_PAGE = {"ink": "#1a202c", "paper": "#ffffff", "grey": "#5a6678", "pale": "#e2e8f0",
              "c0": "#2b5f9e", "c1": "#c05621", "c2": "#276749", "c3": "#5b3aad"}  # fmt: skip
DARK_PAGE = {"ink": "#e6e9ef", "paper": "#14181f", "grey": "#a3aebf", "pale": "#3a4352",
             "c0": "#7fb2f0", "c1": "#f0a06c", "c2": "#7cc79b", "c3": "#b8a2f2"}  # fmt: skip
COLOURS = "c0", "c1", "c2", "c3"
NOW = " class='fa-now'"

SHOW = (
    "const f=this.closest('.fa-steps'),k=+this.value,p=f.querySelector('.fa-code');"
    "f.querySelectorAll('.fa-step').forEach((s,i)=>{s.hidden=i!=k;if(i==k&&p)"
    "p.querySelectorAll('span').forEach((l,j)=>{const on=j==s.dataset.line;"
    "l.classList.toggle('fa-now',on);"
    "if(on)p.scrollTop=l.offsetTop-p.offsetTop-p.clientHeight/2})});"
    "f.querySelector('output').value=(k+1)+' / '+(+this.max+1);"
)
MOVE = (
    "const r=this.closest('.fa-steps').querySelector('input');r.value=+r.value+({});"
    "r.dispatchEvent(new Event('input'));"
)
PLAY = (
    "const b=this,r=b.closest('.fa-steps').querySelector('input'),"
    "go=()=>{r.dispatchEvent(new Event('input'))},"
    "stop=()=>{clearInterval(b.timer);b.timer=0;b.textContent='▶ play'};"
    "if(b.timer){stop();return}"
    "b.textContent='❚❚ pause';if(r.value==r.max){r.value=0;go()}"
    "b.timer=setInterval(()=>{if(!b.isConnected||r.value==r.max){stop();return}"
    "r.value=+r.value+1;go()},PACE);"
)
# The last rule: Sphinx's theme puts a light ground below what a cell shows on a dark page.
RULES = """.fa-steps{VARIABLES;color:var(--ink);background:var(--paper);margin:0;padding:6px;
max-width:60em;font:14px/1.4 system-ui,sans-serif}
.fa-steps svg{width:100%;max-width:WIDTHpx;display:block;font:13px system-ui,sans-serif}
.fa-steps .fa-bar{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin-bottom:6px}
.fa-steps .fa-bar button{font:inherit;min-width:2.6em;padding:3px 9px;color:var(--ink);
background:var(--pale);border:1px solid var(--grey);border-radius:4px;cursor:pointer}
.fa-steps .fa-bar input{flex:1 1 8em;min-width:6em}
.fa-steps .fa-step[hidden]{display:none}
.fa-steps .fa-body{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:flex-start}
.fa-steps .fa-all{flex:1 1 WIDTHpx;min-width:0;max-width:WIDTHpx}
.fa-steps .fa-step p{margin:2px 0 8px;min-height:2.8em}
.fa-steps .fa-code{flex:1 1 340px;min-width:0;max-height:24em;overflow:auto;margin:0;padding:4px 0;
color:var(--ink);background:var(--paper);border:1px solid var(--pale);
font:12px/1.45 ui-monospace,monospace;white-space:pre}
.fa-steps .fa-code span{display:block;min-width:max-content;padding:0 6px}
.fa-steps .fa-code .fa-now{background:var(--c0);color:var(--paper)}
.fa-steps text{fill:var(--ink)}.fa-steps .fa-l-paper{fill:var(--paper)}
.fa-steps .fa-l-grey{fill:var(--grey)}
.fa-steps rect{stroke:var(--grey);fill:var(--paper)}
.fa-steps path{stroke:var(--grey);fill:none;stroke-width:1.5}
.fa-steps details{color:var(--ink)}.fa-steps .fa-pale{fill:var(--pale)}
.fa-steps .fa-dashed{stroke-dasharray:3 3}.fa-steps .fa-hot{stroke:var(--ink);stroke-width:3}
.fa-steps .fa-faint{fill-opacity:.3}
.fa-steps .fa-clear{fill:none}
.text_html:has(>.fa-steps){background:none!important;padding:0!important}"""


@dataclass(frozen=True)
class Step:
    """One step: its drawing, what it shows in words, and the line of the listing that runs."""

    drawing: str  # the inside of an <svg>
    words: str
    line: int = -1  # which of the lines of `Steps.code`


class Steps:
    """Steps with controls.

    Attributes
    ----------
    subject : str
        A sentence on the picture, for who cannot see it.
    steps : list of Step
    size : (int, int)
        Width and height of each drawing, in units that are pixels on a wide page. A phone is about
        340 wide.
    code : list of str
        Lines of a program to show beside the drawing.
    pace : int
        Milliseconds of a step while it plays.
    """

    def __init__(self, subject, steps, size, *, code=(), pace=900):
        if not steps:
            raise ValueError(f"steps must be at least one, got {steps!r}")
        self.subject, self.steps, self.size = subject, list(steps), size
        self.code, self.pace = list(code), pace

    def describe(self):
        """All steps in words, a line each."""
        width = len(str(len(self.steps)))
        return "\n".join(f"{i:>{width}}. {s.words}" for i, s in enumerate(self.steps, 1))

    def __repr__(self):
        return f"{self.subject}\n{self.describe()}"

    def _repr_html_(self):
        last, (width, height) = len(self.steps) - 1, self.size
        steps = []
        for number, step in enumerate(self.steps):
            hidden = " hidden" if number else ""
            steps.append(
                f'<div class="fa-step" data-line="{step.line}"{hidden}>'
                f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{step.drawing}</svg>'
                f'<p aria-live="polite">{escape(step.words)}</p></div>'
            )
        buttons = [("one step back", "◀", MOVE.format(-1)), ("one step on", "▶|", MOVE.format(1))]
        back, on = (
            f'<button type="button" aria-label="{name}" onclick="{script}">{sign}</button>'
            for name, sign, script in buttons
        )
        play = f'<button type="button" onclick="{PLAY.replace("PACE", str(self.pace))}">▶ play'
        slider = (
            f'<input type="range" min="0" max="{last}" value="0" aria-label="step" '
            f'oninput="{SHOW}">'
        )
        code = ""
        if self.code:
            first = self.steps[0].line
            lines = (
                f"<span{NOW if i == first else ''}>{escape(x) or ' '}</span>"
                for i, x in enumerate(self.code)
            )
            code = (
                f'<pre class="fa-code" tabindex="0" aria-label="the program">{"".join(lines)}</pre>'
            )
        words = "".join(f"<li>{escape(step.words)}</li>" for step in self.steps)
        return (
            f'<figure class="fa-steps" role="group" aria-label="{escape(self.subject)}">'
            f"<style>{style(width)}</style>"
            f'<div class="fa-bar">{back}{play}</button>{on}{slider}'
            f"<output>1 / {last + 1}</output></div>"
            f'<div class="fa-body"><div class="fa-all">{"".join(steps)}</div>{code}</div>'
            f"<details><summary>All steps in words</summary><ol>{words}</ol></details></figure>"
        )


def style(width):
    """The style sheet: colours of both themes, drawings of this width at most."""
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in page.items())
        for page in (LIGHT_PAGE, DARK_PAGE)
    )
    fills = "".join(f".fa-steps .fa-{c}{{fill:var(--{c})}}" for c in COLOURS)
    rules = RULES.replace("VARIABLES", light).replace("WIDTH", str(width)).replace("\n", "")
    return f"{rules}{fills}{DARK} .fa-steps{{{dark}}}"


# --- parts of a drawing: SVG with classes, whose colours follow the page


def box(x, y, wide, high, words="", *kinds):
    """A rectangle with words in its middle.

    kinds are of "c0" to "c3" and "pale", its colour; "faint", "clear" (none), "hot" (a thick edge)
    and "dashed". On a colour without "faint" the words have the colour of the page.
    """
    classes = " ".join(f"fa-{kind}" for kind in kinds)
    full = any(kind in COLOURS for kind in kinds) and "faint" not in kinds
    rect = f'<rect class="{classes}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"/>'
    if words == "":
        return rect
    middle = x + wide / 2, y + high / 2 + 4.5
    return rect + label(*middle, words, "paper" if full else "ink", anchor="middle")


def label(x, y, words, colour="ink", *, anchor="start", size=13):
    """Words; y is the line that they stand on."""
    return (
        f'<text class="fa-l-{colour}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
        f'font-size="{size}">{escape(str(words))}</text>'
    )


def line(*points):
    """A line through points."""
    return f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def grid(x, y, columns, rows, side):
    """The lines between square cells, without the frame."""
    down = (f"M{x + i * side:g} {y:g}v{rows * side:g}" for i in range(1, columns))
    across = (f"M{x:g} {y + i * side:g}h{columns * side:g}" for i in range(1, rows))
    return f'<path d="{"".join((*down, *across))}"/>'
