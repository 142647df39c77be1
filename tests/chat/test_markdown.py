"""Markdown that arrives in pieces looks as if it had arrived at once."""

import random

import pytest
from rich.cells import cell_len
from rich.table import Table

from splashlite.chat.inline import inline
from splashlite.chat.markdown import Markdown
from splashlite.chat.wrap import joined

SAMPLE = """# A heading with `code`

Some **bold text** and *italic*, ***both***, 2*3*4 = 24, 2**3 and 4**5, a_b_c, a _word_, ~~gone~~.
A [link](https://example.com/a_(b)), ![picture](p.png), [no link] and <https://x.y>. This line is long enough to wrap.
**Bold start** of a line. *it **nested** it* and **b *i*** end. Unclosed ** and `tick and * star
- an item which is long enough that it has to wrap onto a second line, hanging
  - a nested item
* a star item
1. first
2) second

> quoted text that is also rather long and must wrap somewhere around here
> more

```python
def f(x):
    \"\"\"A docstring
    of two lines\"\"\"
    return "a" + str(x)  # comment with **stars**
```

~~~
plain | not a table
~~~

| a | b **bold** | right |
|---|:---:|---:|
| 1 | two | 3 |
| x | `y` | z\\|z |

| not | a table

---
这是**粗体**文字，中文文字没有空格，所以必须在任何宽字符之间换行，否则终端会自己换行。
\\(x^2\\) and \\*not italic\\* end"""


def shown(text, sizes, width=60):
    """Characters with their styles, and tables, in the order they appear."""
    markdown, out, at = Markdown(lambda: width), [], 0
    for count in sizes:
        out += markdown.feed(text[at : at + count])
        at += count
    out += markdown.feed(text[at:]) + markdown.finish()
    flat = []
    for part in out:
        flat += ["table"] if isinstance(part, Table) else [(character, part[1]) for character in part[0]]
    return flat


def plain(text, width=60):
    return "".join(part if isinstance(part, str) else part[0] for part in shown(text, [], width))


def styled(text):
    return [run for run in joined(inline(text, final=True)[0]) if run[1]]


@pytest.mark.parametrize("seed", range(40))
def test_any_split_shows_the_same(seed):
    chance = random.Random(seed)
    sizes = [chance.randint(1, 1 + seed) for _ in range(len(SAMPLE))]
    assert shown(SAMPLE, sizes) == shown(SAMPLE, [])


@pytest.mark.parametrize("seed", range(20))
def test_any_split_of_markup_noise_shows_the_same(seed):
    chance = random.Random(seed)
    noise = "".join(chance.choice("**__``~[]()!|#>-+ 1.\\ab \n\n漢") for _ in range(300))
    sizes = [chance.randint(1, 5) for _ in range(300)]
    assert shown(noise, sizes) == shown(noise, [])


@pytest.mark.parametrize("width", [10, 24, 40, 60, 100])
def test_no_line_is_wider_than_asked_unless_it_cannot_be_broken(width):
    prose = "\n".join(line for line in SAMPLE.splitlines() if "http" not in line and "|" not in line)
    for line in plain(prose.split("```")[0] + prose.split("~~~")[-1], width).splitlines():
        hanging = 2 if line and cell_len(line[-1]) == 2 else 0
        unbroken = max(map(cell_len, line.split(" ")), default=0)
        assert cell_len(line) <= max(width, unbroken + 4) + hanging, line


def test_nothing_but_marks_is_lost():
    text = "Plain words, 2*3*4, a_b_c, 2**3 and 4**5, C:\\temp, \\(x\\), [1], f(x)[0], 5 * 3 * 2, **unclosed and `open"
    assert plain(text, 500) == text


def test_spans():
    assert styled("a **b** c") == [("b", "bold")]
    assert styled("*a* _b_ ***c*** ~~d~~") == [
        ("a", "italic"),
        ("b", "italic"),
        ("c", "bold italic"),
        ("d", "strike"),
    ]
    assert styled("**a *b***") == [("a ", "bold"), ("b", "bold italic")]
    assert styled("`*x*` ``a`b``") == [("*x*", "cyan"), ("a`b", "cyan")]
    assert styled("[here](https://a.b)") == [("here", "underline"), (" (https://a.b)", "dim")]
    assert styled("这是**粗体**文字") == [("粗体", "bold")]
    assert styled("snake_case_name 2*3*4 \\*no\\*") == []


def test_words_appear_before_their_line_is_complete():
    markdown = Markdown(lambda: 60)
    assert "".join(text for text, _ in markdown.feed("Several words of a par")) == "Several words of a"


def test_an_unclosed_mark_does_not_hold_text_forever():
    markdown = Markdown(lambda: 60)
    text = "".join(text for text, _ in markdown.feed("**" + "word " * 200))
    assert "word word" in text


def test_code_is_verbatim_and_its_lines_are_not_wrapped():
    code = "    x = [i for i in range(100)]  " + "# long " * 30
    assert f"\n{code}\n" in plain(f"```python\n{code}\n```\n", 30)


def test_an_open_fence_at_the_end_is_shown():
    assert plain("```\nlast line") == "```\nlast line"
