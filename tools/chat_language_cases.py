"""Small templates over the language; make_chat_fixtures.py asks jinja2 what they print.

EXPRESSIONS holds one a line, each to be printed; TEMPLATES holds whole templates.
"""
VARIABLES = {
    "s": "Hello World", "u": "héllo 日本🙂", "blank": "", "pad": " \t x y \n", "n": 7, "neg": -3, "f": 2.5, "t": True,
    "no": None, "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "empty": [],
    "d": {"b": 1, "a": [1, 2], "items2": "x", "get": "shadow"},
    "ms": [{"role": "user", "n": 2, "c": {"x": 1}}, {"role": "bot", "n": 1, "c": {"x": 2}}, {"role": "user", "n": 3}],
}

EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 / 2
6 / 3
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
1 / 0
1 % 0
1.0
1e3
1e16
1e15
1.5e-5
0.0001
123456789.123
0.1 + 0.2
1_000
-0.0
- 3 | abs
+true
true + true
1 + '1'
'a' + 1
'a' + 'b'
'a' * 3
3 * 'ab'
'a' * -1
[1] * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' ~ 1 ~ none ~ 2.0 ~ true ~ [1, 'x']
1 ~ 2 + 3 ~ 4
missing
missing ~ 'x'
missing + 'x'
missing.a
missing['a']
missing()
missing == missing2
missing in 'abc'
'a' in missing
missing < 1
not missing
missing | length
missing | list
missing | default('z')
missing | upper
missing | tojson
missing | join(',')
missing | first
missing | int
d.nope
d.nope.deeper
no.x
no['x']
n.real2
none
true
True
[1, 2.0, 'x', none, true, missing]
(1,)
()
(1, 2)
1, 2
{'a': 1, 'b': [1, {'c': (1, 2)}]}
{1: 2, 1.0: 3}
{[1]: 2}
{'a': 1, 'a': 2}
['it\'s', "q\"", 'b\'"']
['\n\t\\', '\x00\x7f\u00a0é\u200b🙂']
'\x41\u00e9\U0001F642\101\q\/'
'a' 'b' "c"
'\u12'
"unclosed
1 < 2 < 3
1 < 3 < 2
1 == 1.0
true == 1
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
[1] == (1,)
[1, [2]] == [1, [2]]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
none == false
none < 1
1 <= 1.0
'a' >= 'a'
3 > 2 > 1 == 1
1 != 1
2 in l
9 not in l
'ell' in s
'b' in d
1 in 'a'
1 in 5
'x' in ()
not 1 == 2
not true or true
1 or 2
0 or ''
0 and 1
'' or 'x' and 'y'
1 if true
1 if false
(1 if false) is defined
1 if false else 2 if false else 3
'a' if n > 5 else 'b'
s[0]
s[-1]
s[99]
s[1:4]
s[::-1]
s[-5:]
s[:-1]
s[::2]
s[8:2:-2]
s[4:1]
s[::0]
s['a':]
u[1]
u[::-1]
u | length
u[-3:]
u.upper()
u | reverse
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[-2:]
l['0']
l[1.0]
l[true]
l.0
d.b
d['b']
d['a'][0]
d.a.1
d.items()|list
d['get']
d.get('b')
d.get('zz')
d.get('zz', 5)
d.keys()|list
d.values()|list
d['items'] is defined
d.keys()[0]
d.items() | length
d[1:2]
n[1:2]
no[1:2]
s.upper()
s.lower()
s.title()
"they're bill's".title()
"they're bill's-x (y)"|title
s.capitalize()
'éCOLE ß'.capitalize()
'straße ΣΑΣ'.lower()
'straße ñ'.upper()
pad.strip()
pad.lstrip()
pad.rstrip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'a\n\n'.rstrip('\n')
'\u00a0 a\u2003'.strip()
'éaé'.strip('é')
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
'a b c'.split(maxsplit=1)
'a,b,c'.rsplit(',', 1)
' a b  c '.rsplit(none, 1)
''.split(',')
''.split()
'abc'.split('')
'</think>x'.split('</think>')[-1]
'a\r\nb\n\nc'.splitlines()
'a\nb'.splitlines(true)
s.startswith('Hell')
s.startswith(('x', 'He'))
s.endswith('d')
s.startswith(1)
s.replace('o', '0')
s.replace('o', '0', 1)
'abc'.replace('', '-')
'aaa'.replace('a', 'aa')
','.join(['a', 'b'])
','.join([1])
s.find('o')
s.find('zz')
u.find('日')
s.find('o', 5)
s.rfind('o')
s.index('zz')
s.count('l')
s.count('')
'aXbX'.partition('X')
'aXbX'.rpartition('X')
'ab'.removeprefix('a') ~ 'ab'.removesuffix('b')
' '.isspace()
''.isspace()
'123'.isdigit()
'Ab'.isupper()
'ab1'.islower()
s.nomethod()
s.upper is defined
s.nomethod is defined
s.upper().lower().strip('h')
s['upper']()
l.append(4)
d.update({'x': 1})
l.index(1)
[1, 1].count(1)
l.index(9)
s | upper
n | upper
s | lower
pad | trim
'xax' | trim('x')
n | trim
s | title
s | capitalize
s | length
l | length
d | length
n | length
no | length
d | count
words | join
words | join(', ')
l | join('-')
[1, none, 2.5] | join('|')
ms | join(',', attribute='role')
s | join('.')
n | join
d | join(',')
l | first
l | last
empty | first
empty | last
s | first
s | last
d | first
no | first
missing | d('x')
no | default('x')
no | default('x', true)
blank | default('x', boolean=true)
blank | default('x')
missing | default
d | tojson
u | tojson
'<a href="x">&\'' | tojson
'\x00\x1f\x7f\b\f\n\r\t\\/' | tojson
u | tojson(ensure_ascii=true)
[1, 1.0, none, true, 1e20, 'x'] | tojson
(1, 2) | tojson
[] | tojson(indent=2)
{} | tojson(indent=2)
d | tojson(indent=2)
d | tojson(indent=4, sort_keys=true)
d | tojson(separators=(',', ':'))
d | tojson(indent=1, separators=(', ', ' = '))
[1, [2]] | tojson(indent=0)
[1] | tojson(indent='--')
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
range(3) | tojson
ms | map(attribute='n') | tojson
s | replace('o', 'oo')
s | replace('l', 'L', 2)
12 | replace(1, 3)
12 | string ~ 3
[1] | string
'42' | int
'42.9' | int
' -7 ' | int
'x' | int
'x' | int(5)
'0x1f' | int(base=16)
'ff' | int(0, 16)
'1_0' | int
none | int
2.9 | int
-2.9 | int
true | int
'1.5' | float
'1e3' | float
'x' | float
'x' | float(2.5)
3 | float
'inf' | float
'nan' | float
none | float
'abc' | list
d | list
l | list
n | list
none | list
range(4) | list
range(1, 4) | list
range(5, 0, -2) | list
range(0) | list
range(1, 2, 0)
range(1000000)
range('a')
range(3)[1]
range(3) | length
2 in range(3)
d | items | list
missing | items | list
l | items | list
d | dictsort
{'B': 1, 'a': 2} | dictsort
{'B': 1, 'a': 2} | dictsort(true)
{'x': 2, 'y': 1} | dictsort(by='value')
{'x': 2, 'y': 1} | dictsort(reverse=true)
{'x': 2} | dictsort(by='z')
l | sort
l | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
ms | sort(attribute='n') | map(attribute='n') | list
ms | sort(attribute='role,n') | map(attribute='n') | list
[1, 'a'] | sort
l | reverse | list
s | reverse
(1, 2) | reverse | list
n | reverse
['a', 'A', 'b', 1, 1.0] | unique | list
['a', 'A'] | unique(case_sensitive=true) | list
ms | unique(attribute='role') | map(attribute='n') | list
ms | map(attribute='c.x', default=0) | list
ms | map(attribute='c.x') | list
words | map('upper') | list
words | map('replace', 'a', 'z') | join
l | map('nofilter') | list
ms | map | list
ms | selectattr('role', 'equalto', 'user') | map(attribute='n') | list
ms | selectattr('c') | list | length
ms | selectattr('c', 'defined') | list | length
ms | rejectattr('role', 'eq', 'user') | map(attribute='n') | list
ms | selectattr('n', '>', 1) | list | length
ms | selectattr('role', 'in', ['bot']) | list | length
[0, 1, '', 'x'] | select | list
[0, 1, '', 'x'] | reject | list
l | select('odd') | list
l | reject('equalto', 1) | list
l | select('ge', 2) | list
l | select('notest') | list
ms | selectattr('role') | length
(l | select('odd'))[0]
l | map('string') is iterable
'<b>' | safe
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
1 | indent
-5 | abs
-5.5 | abs
'x' | abs
2.5 | round
3.5 | round
2.675 | round(2)
3 | round
1.21 | round(1, 'ceil')
1.29 | round(1, 'floor')
1.5 | round(method='up')
l | sum
ms | sum(attribute='n')
l | sum(start=10)
['a'] | sum
l | min
l | max
words | min
words | max
empty | max
ms | max(attribute='n')
[1, 2, 3] | batch(2) | list
[1, 2, 3] | batch(2, 'x') | list
d | attr('b')
'%s-%d' | format('a', 3)
'%5.2f|%-4s|%04d|%x|%%' | format(3.14159, 'ab', 42, 255)
'%s' % 'x'
'%s %s' % ('a', 1)
'%s' % [1]
'%d' % 'x'
'%s %s' % ('a',)
'%s' % ('a', 'b')
s | nofilter
s is notest
s is defined
missing is defined
missing is not defined
missing is undefined
no is none
no is not none
s is string
n is string
n is number
f is number
t is number
n is integer
t is integer
f is integer
f is float
t is boolean
n is boolean
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
missing is sequence
l is iterable
n is iterable
missing is iterable
no is iterable
t is true
n is true
t is false
3 is odd
4 is even
-3 is odd
6 is divisibleby 3
6 is divisibleby(4)
1 is equalto 1
1 is eq 2
1 is ne 2
1 is lt 2
2 is gt(1)
2 is in [1, 2]
1 is sameas true
none is sameas none
'abc' is lower
'ABC' is upper
'1' is lower
range is callable
s is callable
x is defined and true
s is string and n is number or false
not s is string
s is not string
(s is string) == true
l is sequence and l is not mapping and l is not string
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1)])
namespace(a=1).a
namespace({'a': 2}).a
namespace(a=1).b is defined
namespace(_a=1)
raise_exception('no')
strftime_now('%d %b %Y %H:%M')
strftime_now('')
lipsum2()
n()
1 +
(1
[1, 2
{'a' 1}
a b
1 2
'a'.b.c
1.5.x
01
9223372036854775807
-9223372036854775807 - 1
''.join([])
(none,)
[none, true, 1.0, -0.5]
1.0 | string | length
100000000000000000.0
1.7976931348623157e308
5e-324
[1.0, 1e100]
'a' == "a"
'\'' ~ "\""
s|upper|lower|title
(s|upper)[0]
s.split(' ')|map('length')|list
s.split(' ')[::-1]|join(' ')
ms[0].role
ms[-1]['role']
ms[0]['c']['x']
ms[2].c is defined
ms[2].c.x
ms|length - 1
ms[ms|length - 1].n
(ms|last).n
ms[1:]|map(attribute='role')|list
ms == ms[:]
ms[0] == ms[1]
ms[0] in ms
"%s" | format(none)
-n | string
- n ** 2
n if n is odd else -n
l[n - 6]
l[:n]
l[neg:]
(1, 2)[1]
{'a': {'b': [1, 2]}}.a.b[1]
{'a': 1}['a']
{'a': 1}.a
[1, 2, 3][1:][0]
'abc'[1:][0]
""
''|length
pad|trim|length
u|title
words|map('upper')|sort|join
[[2, 'b'], [1, 'a']]|sort
[3, 1]|sort|first
d|length > 2 and 'yes' or 'no'
"a" "b" ~ "c"
[] is sequence and not []
true and 'x' in ['x', 'y'] and not false
1 in [1] in [[1]]
'x' is in 'xyz'
s is string if true else s
loop
self2
caller
"""

TEMPLATES = [
    "a\n", "a\n\n", "\n", "{{ 1 }}\n", "{{ 1 }}\n\n", "a\r\nb\rc{{ '\r\n' }}",
    "{% if true %}\nx\n{% endif %}\ny", "  {% if true %}\n  x\n  {% endif %}\n  y", "a {% if true %} b {% endif %} c",
    "a \n {%- if true -%} \n b \n {%- endif -%} \n c", "a\n  {%+ if true %}\n b\n{% endif +%}\nc",
    "  {{ 1 }}  \n  {{- 2 -}}  \n 3", "a\n  {# c #}\n b", "a {#- c -#} b", "a\n {#+ c +#}\nb", "{# {{ 1 }} {% x %} #}y",
    "{# unclosed", "{% raw %}{{ x }}{% y %}{% endraw %}z", "{% raw %}\n  a\n  {% endraw %}\nb", " {%- raw -%} a {%- endraw -%} b",
    "{% raw %}x", "{{ '}}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ '{%' }}", "{{ 1 }", "{% if", "{% endif %}", "{% if true %}",
    "{% if true %}a{% else %}b{% else %}c{% endif %}", "{% if %}a{% endif %}", "{% unknown %}", "{{ }}", "{% %}", "{ {x} }%}", "}}",
    "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if missing %}a{% elif blank %}b{% endif %}d",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nope is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.depth }}{% endfor %}",
    "{% for x in empty %}a{% else %}b{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}", "{% for x in 'añb' %}{{ x }}.{% endfor %}", "{% for x in d %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | items %}{{ k }}{% endfor %}",
    "{% for k, v in [[1, 2], [3, 4]] %}{{ k + v }};{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, in [[1]] %}{{ a }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }};{% endfor %}",
    "{% for x in l if x > 9 %}a{% else %}none{% endfor %}", "{% for m in ms if m.role == 'user' %}{{ m.n }}{% endfor %}",
    "{% for x in [1, 2] + [3] %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}e{% endfor %}", "{% break %}", "{% continue %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% set o = loop %}{% for y in l %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{{ x }}{% for x in l %}{{ x }}{% endfor %}{{ x }}", "{% for loop in l %}{{ loop }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% for i in l %}{% set y = i %}{% endfor %}{{ y is defined }}", "{% for i in l %}{{ z is defined }}{% set z = 1 %}{% endfor %}",
    "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set (a, b) = (1, 2) %}{{ b }}", "{% set x = 1, 2 %}{{ x }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper %}a{{ s }}{% endset %}{{ x }}",
    "{% set x | trim | replace('a', 'b') %} aa {% endset %}[{{ x }}]", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% set true = 1 %}", "{% set 1 = 1 %}", "{% set x.y = 1 %}", "{% set d.b = 2 %}", "{% set x %}", "{% set x = %}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace() %}{% set ns.x = [1] %}{% set ns.x = ns.x + [2] %}{{ ns.x }}{{ ns.nope }}{{ ns['x'] }}",
    "{% set ns = namespace(a=1) %}{% set ns._b = 1 %}", "{% set ns = namespace(a='x', b=[1]) %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}", "{% set ns = namespace(a=1) %}{% set other = ns %}{% set other.a = 2 %}{{ ns.a }}",
    "{% set ns = namespace(l=[]) %}{% for m in ms %}{% set ns.l = ns.l + [m.n] %}{% endfor %}{{ ns.l | tojson }}",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=5) }}{{ f() }}",
    "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(c=2) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "{{ f(1) }}{% macro f(a) %}{{ a }}{% endmacro %}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ f() }}", "{% macro f() %}{% set x = 1 %}{% endmacro %}{{ f() }}{{ x is defined }}",
    "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %} x {% endmacro %}{{ f() | trim ~ '!' }}{{ f().strip() }}{{ f() is string }}",
    "{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(3) %}<{{ y }}>{% endcall %}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in{% endcall %}", "{% call 1 %}{% endcall %}",
    "{% macro f(x) %}{% for i in x %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{% for q in l %}{{ f([q]) }}{% endfor %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% generation %}a{{ n }}{% endgeneration %}b", "{% generation %}\n  x\n  {% endgeneration %}\ny",
    "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "{% for x in l %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}",
    "{{ raise_exception('x') if false else 'ok' }}", "{% if n > 5 %}{{ raise_exception('big ' ~ n) }}{% endif %}",
    "{{ s if s is string }}", "{{- '  a' -}}  b", "{{ 1 -}}\n\n x", "a\n\n{%- set x = 1 %}\nb", "a\n{% set x = 1 -%}\n\n b",
    "  {%- if true %}\n a\n  {%- endif %}\n b", "{% if true -%}\n\n a {%- endif %}", "\t{% if true %}\t\nx{% endif %}", "x{% if true %}\n\n\ny{% endif %}",
    "{%if true%}a{%endif%}", "{%- for x in l -%} {{ x }} {%- endfor -%}", "{{ l[0]if true else 1 }}", "{{'a'}}{{\"b\"}}",
    "{% for x in range(3) %}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "{% for x in l | sort %}{{ x }}{% endfor %}",
    "{% for x in l | reverse %}{{ x }}{% endfor %}", "{% for x in ms | map(attribute='role') %}{{ x }}{% endfor %}",
    "{% for x in l | select('odd') %}{{ loop.length }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}x{{ 1/0 }}",
    "{{ [1, 2, 3,] }}{{ {'a': 1,} }}{{ (1, 2,) }}", "{{ [\n1,\n2\n] }}", "{{ s.split(\n' ' )[0] }}", "{% set x = {\n 'a': 1 } %}{{ x.a }}",
    "{{ '\\n' }}|{{ \"\\t\" }}|{{ 'a\nb' }}", "{{ x|default('d')|upper }}", "{{ (x|default('d')) ~ 1 }}", "{{ n }}{{ n }}\n{{ n }}",
    "héé {{ u }} 日本 {% if true %}🙂{% endif %}", "{{ été }}{% set été = 1 %}{{ été }}", "{% set _x = 2 %}{{ _x }}",
    "{% if not (1 > 2 and missing.x) %}ok{% endif %}", "{% if true or missing.x %}ok{% endif %}", "{% if d.a is defined and d.a[0] == 1 %}y{% endif %}",
    "{% if l %}{% if empty %}a{% else %}b{% endif %}{% endif %}", "{% if s and 'W' in s %}{{ s.index('W') }}{% endif %}",
    "{{ s.__class__ }}x", "{{ s.__class__.x }}", "{{ ''.__len__() }}", "{% set messages = ms[1:] %}{{ messages | length }}",
    "{% set ms = ms[1:] %}{{ ms | length }}", "{% for m in ms[::-1] %}{% set i = (ms | length - 1) - loop.index0 %}{{ i }}{% endfor %}",
    "{% for m in ms %}{% if loop.first or ms[loop.index0 - 1].role != m.role %}*{% endif %}{{ m.role }}{% endfor %}",
]
