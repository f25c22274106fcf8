"""Templates that attack: each must end soon, in a TemplateError, without reaching anything outside."""

from __future__ import annotations

import resource
import time

import pytest

from octavo.errors import TemplateError
from tests.text.test_chat import template

MESSAGES = [{"role": "user", "content": "hi"}]
DOUBLE = "{%% set ns = namespace(v=%s) %%}{%% for i in range(64) %%}{%% set ns.v = %s %%}{%% endfor %%}%s"
BIG = "{% set big = 'a' * 4000000 %}"

ENDLESS = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "nested loops with output": "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "loop filters": "{% for i in range(100000) if false %}{% endfor %}" * 200,
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro of exponential cost": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "heavy filters": "{% for i in range(100000) %}{% set x = range(100000) | list | sort | length %}{% endfor %}",
    "block recursion": "{% block a %}{{ self.a() }}{% endblock %}",
    "deep parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep statements": "{% if a %}" * 2000 + "{% endif %}" * 2000,
}
HUGE = {
    "text times number": "{{ 'a' * 1000000000 }}",
    "number times text": "{{ 1000000000 * 'a' }}",
    "list times number": "{{ [1] * 1000000000 }}",
    "range": "{{ range(1000000000) | list }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "product": DOUBLE % (9, "ns.v * ns.v", "{{ ns.v }}"),
    "doubling +": DOUBLE % ("'ab'", "ns.v + ns.v", ""),
    "doubling ~": DOUBLE % ("'ab'", "ns.v ~ ns.v", ""),
    "doubling list +": DOUBLE % ("[1]", "ns.v + ns.v", ""),
    "shared list": DOUBLE % ("[1]", "[ns.v, ns.v]", "{{ ns.v }}"),
    "shared tuple": DOUBLE % ("[1]", "(ns.v, ns.v)", "{{ ns.v == ns.v }}"),
    "shared map": DOUBLE % ("[1]", "{'a': ns.v, 'b': ns.v}", "{{ ns.v | tojson }}"),
    "shared dict()": DOUBLE % ("[1]", "dict(a=ns.v, b=ns.v)", "{{ ns.v | string }}"),
    "shared varargs": "{% set ns = namespace(v=[1]) %}{% macro f() %}{% set ns.v = varargs %}{% endmacro %}"
    "{% for i in range(64) %}{{ f(ns.v, ns.v) }}{% endfor %}{{ ns.v }}",
    "doubling block": "{% set ns = namespace(v='ab') %}{% for i in range(64) %}{% set ns.v %}{{ ns.v }}{{ ns.v }}{% endset %}{% endfor %}",
    "doubling tojson": DOUBLE % ("'\"'", "ns.v | tojson", ""),
    "output": BIG + "{% for i in range(1000) %}{{ big }}{% endfor %}",
    "block": BIG + "{% set x %}{% for i in range(100000) %}{{ big }}{% endfor %}{% endset %}{{ x | length }}",
    "macro": BIG + "{% macro m() %}{% for i in range(100000) %}{{ big }}{% endfor %}{% endmacro %}{{ m() | length }}",
    "many variables": "".join(f"{{% set v{i} = 'a' * 4000000 %}}" for i in range(1500)),
    "center": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent key": "{{ '%(k)1000000000d' % {'k': 1} }}",
    "percent nested key": "{{ '%((k))1000000000d' % {'(k)': 1} }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format argument": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "replace": BIG + "{{ big.replace('a', big) | length }}",
    "replace filter": BIG + "{{ big | replace('a', big) | length }}",
    "replace keyword": BIG + "{{ big | replace(old='a', new=big) | length }}",
    "join": BIG + "{{ range(100000) | join(big) | length }}",
    "join keyword": BIG + "{{ range(100000) | join(d=big) | length }}",
    "join method": BIG + "{{ big.join(range(100000) | map('string')) | length }}",
    "join of maps": "{{ range(100000) | map('center', 4000000) | join | length }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "batch": "{{ [1] | batch(linecount=1000000000, fill_with='x') | list }}",
    "indent": "{{ ('\n' * 1000000) | indent(100000) | length }}",
    "tojson": "{{ [1, [2]] | tojson(indent=1000000000) }}",
    "sum of lists": "{{ ([[1] * 1000] * 100) | sum(start=[]) }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "to_bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
}
NOT_OFFERED = {"sum of lists", "to_bytes", "expandtabs"}
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__class__.__base__ }}", "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}", "{{ messages[0].pop('role') }}", "{{ messages[0].__setitem__('role', 'x') }}",
    "{{ raise_exception.__globals__['__builtins__'] }}", "{{ range.__globals__['json'] }}", "{{ dict.__globals__.json }}",
    "{{ namespace.mro() }}", "{{ namespace.__init__.__globals__['os'] }}", "{{ joiner.__init__.__globals__['os'] }}",
    "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.x() }}", "{{ lipsum.__globals__['os'].popen('id') }}",
    "{{ cycler.__init__.__globals__.os }}", "{{ config.items() }}", "{{ ''|attr('__class__') }}", "{{ '{0.__class__.__init__.x}'.format('a') + 1 }}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% extends 'base' %}", "{{ ().__getattribute__('__class__') }}",
    "{{ (messages | map('upper')).gi_frame.f_globals }}", "{{ 'a'.format.__self__.x() }}", "{{ 'a'.encode().hex() }}",
    "{{ 'a'.translate({97: 'b'}) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ 1 | nosuchfilter }}",
    "{{ [1, 2] | random }}", "{{ open('/etc/passwd').read() }}", "{% set messages[0] = 1 %}", "{% do messages.append(1) %}", "{{ loop.index }}",
]  # fmt: skip


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def attack(source: str) -> TemplateError:
    before, started = peak_kib(), time.thread_time()
    with pytest.raises(TemplateError) as caught:
        template(source).render(MESSAGES)
    assert time.thread_time() - started < 4, "processor time, compiling included"
    assert peak_kib() - before < 1_500_000, "KiB of memory"
    return caught.value


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_end(name: str) -> None:
    attack(ENDLESS[name])


@pytest.mark.parametrize("name", HUGE)
def test_huge_results_are_refused(name: str) -> None:
    error = attack(HUGE[name])
    assert "asks for too much" in error.message or name in NOT_OFFERED, "refused before it is made, not when memory has run out"


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_outside_can_be_reached(source: str) -> None:
    attack(source)


def test_internal_names_read_as_nothing() -> None:
    """Unsafe attributes that are only printed are undefined, which prints nothing."""
    source = "{{ ''.__class__ }}{{ messages.__class__ }}{{ range.__globals__ }}{{ ['a'] | map(attribute='__class__') | join }}"
    source += "{{ '{0.__class__}'.format('a') }}"
    assert template(source).render(MESSAGES) == ""


def test_a_failed_render_leaves_the_next_alone() -> None:
    attack(ENDLESS["nested loops"])
    assert template("{% for m in messages %}{{ m.content }}{% endfor %}").render(MESSAGES) == "hi"


def test_large_but_honest_texts_pass() -> None:
    text = "word " * 500_000
    source = "{% for m in messages %}{{ '<' ~ m.role ~ '>' + m.content | trim }}{% endfor %}{{ ('a' * 1000000) | length }}"
    assert template(source).render([{"role": "user", "content": text}]) == "<user>" + text.strip() + "1000000"
