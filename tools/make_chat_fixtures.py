#!/usr/bin/env python3
"""Writes src/text/testdata/chat/*.json: what jinja2, as transformers sets it up, makes of templates.

    python3 tools/make_chat_fixtures.py src/text/testdata/chat        (needs transformers 5 with jinja2 >= 3.1.6)

families.json   one template per model family x message lists x generation prompt x thinking.
language.json   small templates over the language itself, with a few variables.
Expected is the rendered text, or null where jinja2 raises.

The family templates are our own writing (Apache-2.0, like the rest): they produce the prompt format that the model's
authors document and use the same Jinja constructs as the published templates, whose licences (Llama's above all) do not
allow copying them here.
"""
import functools
import json
import sys
from datetime import datetime
from pathlib import Path

from transformers.utils import chat_template_utils

FIXED_NOW = datetime(2024, 7, 6, 5, 4, 3)


@functools.cache
def environment_template(source):
    template = chat_template_utils._cached_compile_jinja_template(source)
    template.globals["strftime_now"] = lambda form: FIXED_NOW.strftime(form)
    return template


def render(source, variables):
    try:
        return environment_template(source).render(**variables)
    except Exception:  # whatever Python raises, the interpreter must answer with an Error
        return None


FAMILIES = {}

FAMILIES["quill"] = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

FAMILIES["chatml"] = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] }}
    {%- if (loop.last and add_generation_prompt) or not loop.last %}
        {{- '<|im_end|>' + '\\n' }}
    {%- endif %}
{% endfor %}
{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

FAMILIES["llama2"] = (
    "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set turns = messages %}{% set system = false %}{% endif %}"
    "{% for turn in turns %}"
    "{% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate, user first') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + turn['content'] %}"
    "{% else %}{% set content = turn['content'] %}{% endif %}"
    "{% if turn['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif turn['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

FAMILIES["llama3"] = (
    "{% set turns = messages %}{% for turn in turns %}"
    "{% set content = '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\\n\\n' + turn['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

LLAMA3_TOOLS = """{{- bos_token }}
{%- if not in_user_turn is defined %}
    {%- set in_user_turn = true %}
{%- endif %}
{%- if not date is defined %}
    DATE_DEFAULT
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system text comes out first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date + "\\n\\n" }}
{%- if tools is not none and not in_user_turn %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}
{{- "<|eot_id|>" }}

{#- Tools go in front of the first question. #}
{%- if in_user_turn and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set question = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Tools need a first user turn to stand in") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Answer with a JSON call of one of these functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- question + "<|eot_id|>" }}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {%- if builtin_tools is defined and call.name in builtin_tools %}
            {{- "<|python_tag|>" + call.name + ".call(" }}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' + value + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
            {%- endfor %}
            {{- ")<|eom_id|>" }}
        {%- else %}
            {{- '{"name": "' + call.name + '", "parameters": ' }}
            {{- call.arguments | tojson }}
            {{- "}<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
FAMILIES["llama3.1"] = LLAMA3_TOOLS.replace("DATE_DEFAULT", '{%- set date = "26 Jul 2024" %}')
FAMILIES["llama3.2"] = LLAMA3_TOOLS.replace(
    "DATE_DEFAULT", '{%- if strftime_now is defined %}\n        {%- set date = strftime_now("%d %b %Y") %}\n'
    '    {%- else %}\n        {%- set date = "26 Jul 2024" %}\n    {%- endif %}')

FAMILIES["mistral-v0.1"] = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token + ' ' }}"
    "{% else %}{{ raise_exception('Unknown role: ' + m['role']) }}{% endif %}{% endfor %}")

MISTRAL_TOOLS = """{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set questions = turns | selectattr("role", "equalto", "user") | list %}

{#- Turns alternate once tool traffic is left out. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for m in turns %}
    {%- if not (m.role == "tool" or (m.tool_calls is defined and m.tool_calls is not none)) %}
        {%- if (m["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for m in turns %}
    {%- if m["role"] == "user" %}
        {%- if tools is not none and (m == questions[-1]) %}
            {{- "[AVAILABLE_TOOLS]SP[" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- "[INST]SP" + system + "\\n\\n" + m["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]SP" + m["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {{- "[TOOL_CALLS]SP[" }}
        {%- for call in m.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception("A tool call's id has 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif m["role"] == "assistant" %}
        {{- "SP" + m["content"] | trim + eos_token }}
    {%- elif m["role"] == "tool" %}
        {%- if m.content is defined and m.content.content is defined %}
            {%- set content = m.content.content %}
        {%- else %}
            {%- set content = m.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS]SP{"content": ' + content | string + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Unknown role: " ~ m.role) }}
    {%- endif %}
{%- endfor %}
"""
FAMILIES["mistral-v0.3"] = MISTRAL_TOOLS.replace("SP", " ")
FAMILIES["mistral-nemo"] = MISTRAL_TOOLS.replace("SP", "")

QWEN_HEAD = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nThe functions are listed within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nCall with\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- else %}
        {{- 'NOSYSTEM' }}
    {%- endif %}
{%- endif %}
"""
QWEN_CALLS = """{%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if call.function %}
                    {%- set call = call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- call.name }}
                {{- '", "arguments": ' }}
                {%- if call.arguments is string %}
                    {{- call.arguments }}
                {%- else %}
                    {{- call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}"""
QWEN_TOOL = """{%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
"""
FAMILIES["qwen2.5"] = QWEN_HEAD.replace("NOSYSTEM", "<|im_start|>system\\nYou are an assistant.<|im_end|>\\n") + """
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- set content = message.content %}
        {%- if content %}
            {{- '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            """ + QWEN_CALLS + """
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    """ + QWEN_TOOL + """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
FAMILIES["qwen3"] = QWEN_HEAD.replace("NOSYSTEM", "") + """{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {%- if loop.last or (not loop.last and thoughts) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            """ + QWEN_CALLS + """
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    """ + QWEN_TOOL + """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Qwen3-Coder and Qwen3-Coder-Next show tools and calls as XML.
XML_FORM = """<tool_call>\\n<function=name_of_the_function>\\n<parameter=name_of_a_parameter>\\nits value,\\nof any number of lines\\n</parameter>\\n</function>\\n</tool_call>"""
FAMILIES["qwen3-coder"] = """{% macro show_others(entry, known) %}
    {%- if entry is mapping %}
        {%- for key in entry if key not in known %}
            {%- if entry[key] is mapping or (entry[key] is sequence and entry[key] is not string) %}
                {{- '\\n<' ~ key ~ '>' ~ (entry[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{-'\\n<' ~ key ~ '>' ~ (entry[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}

{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = [] %}
{%- endif %}
{%- set with_tools = tools is iterable and tools | length > 0 %}
{%- if system is defined %}
    {{- "<|im_start|>system\\n" + system }}
{%- elif with_tools %}
    {{- "<|im_start|>system\\nYou work with a computer." }}
{%- endif %}
{%- if with_tools %}
    {{- "\\n\\n# Tools\\n\\nThese are the functions:\\n\\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}
            {%- set tool = tool.function %}
        {%- endif %}
        {{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}
        {%- endif %}
        {{- '\\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for name, fields in tool.parameters.properties|items %}
                {{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}
                    {{- '\\n<type>' ~ (fields.type | string) ~ '</type>' }}
                {%- endif %}
                {%- set known = ['name', 'type', 'description'] %}
                {{- show_others(fields, known) }}
                {{- '\\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- show_others(tool.parameters, ['type', 'properties']) }}
        {{- '\\n</parameters>' }}
        {{- show_others(tool, ['type', 'name', 'description', 'parameters']) }}
        {{- '\\n</function>' }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call has this form:\\n\\nFORM" }}
{%- endif %}
{%- if system is defined or with_tools %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\\n' + message.content | trim + '\\n' }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- if call.arguments is defined %}
                {%- for key, value in call.arguments|items %}
                    {{- '<parameter=' + key + '>\\n' }}
                    {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                    {{- value }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>\\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".replace("FORM", XML_FORM)

# Qwen3.5 opens the thought in the prompt; 3.6 may keep the thoughts of all turns, and 3.8 does so and knows levels of effort.
QWEN35 = """{%- set seen = namespace(pictures=0) %}
{%- macro shown(content, counts, of_system=false) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if 'image' in part or 'image_url' in part or part.type == 'image' %}
                {%- if of_system %}
                    {{- raise_exception('A system message has no picture') }}
                {%- endif %}
                {%- if counts %}
                    {%- set seen.pictures = seen.pictures + 1 %}
                {%- endif %}
                {%- if add_vision_id %}
                    {{- 'Picture ' ~ seen.pictures ~ ': ' }}
                {%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('A part is a text or a picture') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('A content is a text or parts') }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('There are no messages') }}
{%- endif %}
EFFORT{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n' + how }}
    {{- "# Tools\\n\\nThese are the functions:\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>" }}
    {{- '\\n\\nA call has this form:\\n\\nFORM\\n\\n<IMPORTANT>\\nNothing follows a call.\\n</IMPORTANT>' }}
    {%- if messages[0].role == 'system' %}
        {%- set content = shown(messages[0].content, false, true)|trim %}
        {%- if content %}
            {{- '\\n\\n' + content }}
        {%- endif %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' or how %}
    {%- set content = shown(messages[0].content, false, true)|trim if messages[0].role == 'system' else '' %}
    {{- '<|im_start|>system\\n' + (how if content else how|trim) + content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(in_steps=true, question=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.in_steps and message.role == "user" %}
        {%- set content = shown(message.content, false)|trim %}
        {%- if not(content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.in_steps = false %}
            {%- set ns.question = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.in_steps %}
    {{- raise_exception('Nobody has asked anything') }}
{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content, true)|trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}
            {{- raise_exception('A system message comes first') }}
        {%- endif %}
    {%- elif message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
OTHER_THOUGHT        {%- endif %}
        {%- set thought = thought|trim %}
        {%- if KEEPS loop.index0 > ns.question %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for call in message.tool_calls %}
                {%- if call.function is defined %}
                    {%- set call = call.function %}
                {%- endif %}
                {%- if loop.first %}
                    {{- ('\\n\\n' if content|trim else '') + '<tool_call>\\n<function=' + call.name + '>\\n' }}
                {%- else %}
                    {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
                {%- endif %}
                {%- if call.arguments is defined and call.arguments != '' %}
                    {%- for key, value in call.arguments|items %}
                        {{- '<parameter=' + key + '>\\n' }}
                        {%- set value = VALUE %}
                        {{- value }}
                        {{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Nobody plays the role ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
""".replace("FORM", XML_FORM)
OTHER_THOUGHT = """        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
"""
EFFORT = """{%- set how = '' %}
{%- if enable_thinking is undefined or enable_thinking is true %}
    {%- set effort = reasoning_effort|default('xhigh') %}
    {%- if effort not in ('xhigh', 'medium', 'low') %}
        {{- raise_exception('There is no effort ' ~ reasoning_effort ~ '; there are xhigh, medium and low.') }}
    {%- endif %}
    {%- if effort == 'xhigh' %}
        {%- set how = 'Think long.\\n\\n' %}
    {%- elif effort == 'low' %}
        {%- set how = 'Think little.\\n\\n' %}
    {%- endif %}
{%- endif %}
"""
OLD_VALUE = "value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string"
NEW_VALUE = "value | string if value is string else value | tojson | safe"


def qwen35(effort, keeps, other_thought, value):
    source = QWEN35.replace("EFFORT", effort).replace("KEEPS ", keeps)
    return source.replace("OTHER_THOUGHT", other_thought).replace("VALUE", value)


FAMILIES["qwen3.5"] = qwen35("{%- set how = '' %}\n", "", OTHER_THOUGHT, OLD_VALUE)
FAMILIES["qwen3.6"] = qwen35("{%- set how = '' %}\n", "(preserve_thinking is defined and preserve_thinking is true) or ",
                             OTHER_THOUGHT, OLD_VALUE)
FAMILIES["qwen3.8"] = qwen35(EFFORT, "preserve_thinking is undefined or preserve_thinking is true or ", "", NEW_VALUE)


# gpt-oss shows tools as types of TypeScript and conversations as messages on channels (OpenAI's harmony).
FAMILIES["gpt-oss"] = """{%- macro typed(spec, needed, may_be_null=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- if spec['items']['type'] in ("string", "boolean") -%}
                {{- spec['items']['type'] + "[]" }}
            {%- elif spec['items']['type'] == "number" or spec['items']['type'] == "integer" -%}
                {{- "number[]" }}
            {%- else -%}
                {%- set inner = typed(spec['items'], needed) -%}
                {{- "any[]" if inner == "object | object" or inner|length > 50 else inner + "[]" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
        {%- if spec.nullable -%}
            {{- " | null" }}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") if spec.type | length > 1 else spec.type[0] }}
    {%- elif spec.oneOf -%}
        {%- set found = namespace(object=false) -%}
        {%- for one in spec.oneOf -%}
            {%- if one.type == "object" -%}
                {%- set found.object = true -%}
            {%- endif -%}
        {%- endfor -%}
        {%- if found.object and spec.oneOf|length > 1 -%}
            {{- "any" }}
        {%- else -%}
            {%- for one in spec.oneOf -%}
                {{- typed(one, needed) -}}
                {%- if one.description %}
                    {{- "// " + one.description }}
                {%- endif -%}
                {%- if one.default is defined %}
                    {{ "// default: " + one.default|tojson }}
                {%- endif -%}
                {%- if not loop.last %}
                    {{- " | " }}
                {% endif -%}
            {%- endfor -%}
        {%- endif -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}
            {{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
            {%- if spec.nullable %}
                {{- " | null" }}
            {%- endif -%}
        {%- endif -%}
    {%- elif spec.type == "number" or spec.type == "integer" -%}
        {{- "number" }}
    {%- elif spec.type == "boolean" -%}
        {{- "boolean" }}

    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\n" }}
            {%- for name, inner in spec.properties.items() -%}
                {{- name -}}
                {%- if name not in (spec.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " }}
                {{ typed(inner, spec.required or []) }}
                {%- if not loop.last -%}
                    {{-", " }}
                {%- endif -%}
            {%- endfor -%}
            {{- "}" }}
        {%- else -%}
            {{- "object" }}
        {%- endif -%}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}

{%- macro functions(name, tools) -%}
    {{- "## " + name + "\n\nnamespace " + name + " {\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\ntype " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\n" }}
            {%- for key, spec in tool.parameters.properties.items() %}
                {%- if spec.description %}
                    {{- "// " + spec.description + "\n" }}
                {%- endif %}
                {{- key }}
                {%- if key not in (tool.parameters.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " + typed(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined -%}
                    {{- ", // default: " + (spec.default if spec.enum else spec.default|tojson) }}
                {%- endif -%}
                {{- ",\n" }}
            {%- endfor %}
            {{- "}) => any;\n\n" }}
        {%- else -%}
            {{- "() => any;\n\n" }}
        {%- endif -%}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}

{%- macro system_text() -%}
    {%- if model_identity is not defined %}
        {%- set model_identity = "You answer questions." %}
    {%- endif %}
    {{- model_identity + "\nKnowledge cutoff: 2024-06\nCurrent date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n" }}
    {%- if builtin_tools %}
        {%- set own = namespace(browser=false) %}
        {%- for tool in builtin_tools %}
            {%- if tool == "browser" %}
                {%- set own.browser = true %}
            {%- endif %}
        {%- endfor %}
        {{- "# Tools\n\n" + ("## browser\n\n" if own.browser else "") }}
    {%- endif -%}
    {{- "# Valid channels: analysis, commentary, final. Channel must be included for every message." }}
    {%- if tools -%}
        {{- "\nCalls to these tools must go to the commentary channel: 'functions'." }}
    {%- endif -%}
{%- endmacro -%}

{{- "<|start|>system<|message|>" }}
{{- system_text() }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set instructions = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}
    {%- set turns = messages %}
{%- endif %}
{%- if instructions or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if instructions %}
        {{- "# Instructions\n\n" + instructions + "\n\n" }}
    {%- endif %}
    {%- if tools -%}
        {{- "# Tools\n\n" + functions("functions", tools) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set newest = namespace(call=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}
                {{- raise_exception("A content has no channels") }}
            {%- endif %}
        {%- endif %}
        {%- if "thinking" in message %}
            {%- if "<|channel|>final<|message|>" in message.thinking %}
                {{- raise_exception("A thought has no channels") }}
            {%- endif %}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set later = namespace(found=false) %}
            {%- for other in turns[loop.index:] %}
                {%- if other.role == 'assistant' and "tool_calls" not in other %}
                    {%- set later.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("A call has a content or a thought before it, not both") }}
            {%- elif message.content and not later.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking and not later.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary " }}
            {{- (call.content_type if call.content_type is defined else "json") + "<|message|>" }}
            {{- call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set newest.call = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set newest.call = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if newest.call is none %}
            {{- raise_exception("A result has a call before it") }}
        {%- endif %}
        {{- "<|start|>functions." + newest.call + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

# Gemma 4 has a notation of its own for tools, calls and results. Its first templates read results from the message with the
# calls alone (gemma4-first), the later ones from messages of the role "tool".
GEMMA4 = """{%- macro shown(value, quote_keys=True) -%}
    {%- if value is none -%}
        {{- NULL -}}
    {%- elif value is string -%}
        {{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}
        {{- 'true' if value else 'false' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- set ns = namespace(any=false) -%}
        {%- for key, inner in value | dictsort -%}
            {%- if ns.any %},{% endif -%}
            {%- set ns.any = true -%}
            {{- '<|"|>' + key + '<|"|>' if quote_keys else key -}}
            :{{- shown(inner, quote_keys=quote_keys) -}}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for item in value -%}
            {{- shown(item, quote_keys=quote_keys) -}}
            {%- if not loop.last %},{% endif -%}
        {%- endfor -%}
        {{- ']' -}}
    {%- else -%}
        {{- value -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro fields(properties) -%}
    {%- set ns = namespace(any=false) -%}
    {%- for key, field in properties | dictsort -%}
        {%- set comma = false -%}
        {%- if ns.any %},{% endif -%}
        {%- set ns.any = true -%}
        {{ key }}:{
        {%- if field['description'] -%}
            description:<|"|>{{ field['description'] }}<|"|>
            {%- set comma = true -%}
        {%- endif -%}
        {%- if field['type'] | upper == 'STRING' and field['enum'] -%}
            {%- if comma %},{%- else -%} {%- set comma = true -%} {% endif -%}
            enum:{{ shown(field['enum']) }}
        {%- elif field['type'] | upper == 'ARRAY' and field['items'] is mapping and field['items'] -%}
            {%- if comma %},{%- else -%} {%- set comma = true -%} {% endif -%}
            items:{
            {%- for name, inner in field['items'] | dictsort -%}
                {%- if name == 'type' -%}
                    type:{{ shown(inner | upper if inner is string else inner | map('upper') | list) }}
                {%- elif name == 'properties' and inner is mapping -%}
                    properties:{ {{- fields(inner) -}} }
                {%- else -%}
                    {{ name }}:{{ shown(inner) }}
                {%- endif -%}
                {%- if not loop.last %},{% endif -%}
            {%- endfor -%}
            }
        {%- elif field['type'] | upper == 'OBJECT' and field['properties'] is mapping -%}
            {%- if comma %},{%- else -%} {%- set comma = true -%} {% endif -%}
            properties:{ {{- fields(field['properties']) -}} }
        {%- endif -%}
        {%- if comma %},{%- else -%} {%- set comma = true -%} {% endif -%}
        type:<|"|>{{ field['type'] | upper }}<|"|>}
    {%- endfor -%}
{%- endmacro -%}
{%- macro declared(tool) -%}
    declaration:{{- tool['function']['name'] -}}{description:<|"|>{{- tool['function']['description'] -}}<|"|>
    {%- set parameters = tool['function']['parameters'] -%}
    {%- if parameters -%}
        ,parameters:{
        {%- if parameters['properties'] -%}
            properties:{ {{- fields(parameters['properties']) -}} },
        {%- endif -%}
        {%- if parameters['required'] -%}
            required:[
            {%- for item in parameters['required'] -%}
                <|"|>{{- item -}}<|"|>
                {{- ',' if not loop.last -}}
            {%- endfor -%}
            ],
        {%- endif -%}
        type:<|"|>{{- parameters['type'] | upper -}}<|"|>}
    {%- endif -%}
    }
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.result = ns.result + part.split('<|channel>')[0] -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}
{%- macro result(name, response) -%}
    {{- '<|tool_response>response:' + name + '{' -}}
    {%- if response is mapping -%}
        {%- for key, value in response | dictsort -%}
            {{- key -}}:{{- shown(value, quote_keys=False) -}}
            {%- if not loop.last %},{% endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- 'value:' + shown(response, quote_keys=False) -}}
    {%- endif -%}
    {{- '}<tool_response|>' -}}
{%- endmacro -%}

{%- set ns = namespace(before=None, role=None, question=-1) -%}
{%- set turns = messages -%}
{%- set thinks = enable_thinking | default(false) -%}
{{- bos_token -}}
{%- if thinks or tools or (messages and messages[0]['role'] in ['system', 'developer']) -%}
    {{- '<|turn>system\n' -}}
    {%- if thinks -%}
        {{- '<|think|>\n' -}}
    {%- endif -%}
    {%- if messages and messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set turns = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] %}
        {{- '<|tool>' -}}
        {{- declared(tool) | trim -}}
        {{- '<tool|>' -}}
    {%- endfor %}
    {{- '<turn|>\n' -}}
{%- endif %}
{%- for i in range(turns | length) -%}
    {%- if turns[i]['role'] == 'user' -%}
        {%- set ns.question = i -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in turns -%}
    {%- if SHOWN_HERE -%}
        {%- set ns.before = None -%}
        {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
        {%- if not (role == 'model' and ns.role == 'assistant') -%}
            {{- '<|turn>' + role + '\n' }}
        {%- endif -%}
        {%- set thought = message.get('reasoning') or message.get('reasoning_content') -%}
        {%- if thought and loop.index0 > ns.question and message.get('tool_calls') -%}
            {{- '<|channel>thought\n' + thought + '\n<channel|>' -}}
        {%- endif -%}
        {%- for call in message.get('tool_calls') or [] -%}
            {%- set function = call['function'] -%}
            {{- '<|tool_call>call:' + function['name'] + '{' -}}
            {%- if function['arguments'] is mapping -%}
                {%- set all = namespace(any=false) -%}
                {%- for key, value in function['arguments'] | dictsort -%}
                    {%- if all.any %},{% endif -%}
                    {%- set all.any = true -%}
                    {{- key -}}:{{- shown(value, quote_keys=False) -}}
                {%- endfor -%}
            {%- else -%}
                {{- raise_exception("Arguments are "
                    "an object") -}}
            {%- endif -%}
            {{- '}<tool_call|>' -}}
            {%- set ns.before = 'call' -%}
        {%- endfor -%}
        {%- for response in message.get('tool_responses') or [] -%}
            {{- result(response['name'] | default('unknown', true), response['response']) -}}
            {%- set ns.before = 'result' -%}
        {%- endfor -%}
LATER        {%- set said -%}
            {%- if message['content'] is string -%}
                {{- without_thoughts(message['content']) if role == 'model' else message['content'] | trim -}}
            {%- elif message['content'] is sequence -%}
                {%- for part in message['content'] -%}
                    {{- part['text'] | trim if part['type'] == 'text' else '<|' + part['type'] + '|>' -}}
                {%- endfor -%}
            {%- endif -%}
        {%- endset -%}
        {{- said -}}
        {%- if not (ns.before == 'result' and not said | trim) -%}
            {{- '<|tool_response>' if ns.before == 'call' else '<turn|>\n' -}}
        {%- endif -%}
        {%- set ns.role = message['role'] -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if not ns.before -%}
        {{- '<|turn>model\n' -}}
        {%- if not thinks -%}
            {{- '<|channel>thought\n<channel|>' -}}
        {%- endif -%}
    {%- elif ns.before == 'result' and thinks -%}
        {{- '<|channel>thought\n' -}}
    {%- endif -%}
{%- endif -%}
"""
LATER_RESULTS = """        {%- set scan = namespace(over=false) -%}
        {%- for k in range(loop.index0 + 1, turns | length) -%}
            {%- if scan.over or not message.get('tool_calls') or turns[k]['role'] != 'tool' -%}
                {%- set scan.over = true -%}
            {%- else -%}
                {%- set own = namespace(name=turns[k].get('name') or 'unknown') -%}
                {%- for call in message.get('tool_calls') -%}
                    {%- if call.get('id') == turns[k].get('tool_call_id') -%}
                        {%- set own.name = call['function']['name'] -%}
                    {%- endif -%}
                {%- endfor -%}
                {{- result(own.name, turns[k].get('content')) -}}
                {%- set ns.before = 'result' -%}
            {%- endif -%}
        {%- endfor -%}
"""
FAMILIES["gemma4"] = GEMMA4.replace("NULL", "'null'").replace("SHOWN_HERE", "message['role'] != 'tool'").replace("LATER", LATER_RESULTS)
FAMILIES["gemma4-first"] = GEMMA4.replace("NULL", "value").replace("SHOWN_HERE", "message").replace("LATER", "")


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id="abcdef123"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather <now> & \"here\"",
        "parameters": {"type": "object", "required": ["city"],
                       "properties": {"city": {"type": "string", "enum": ["Zürich", "東京"]}, "days": {"type": "integer", "default": 1.5}}}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}, "return": None}},
]
CHATS = {
    "one": [m("user", "Hello")],
    "system": [m("system", "Be brief.\n"), m("user", "  Hi \n")],
    "turns": [m("user", "a"), m("assistant", "b "), m("user", "c")],
    "system turns": [m("system", ""), m("user", "1"), m("assistant", "2"), m("user", "3"), m("assistant", " 4\n")],
    "empty content": [m("user", "")],
    "unicode": [m("system", "Sé útil\u00a0"), m("user", "¿日本語 🙂? \u2028<|im_end|>"), m("assistant", "e\u0301 ß")],
    "wrong order": [m("assistant", "first"), m("user", "second")],
    "two users": [m("user", "x"), m("user", "y")],
    "odd role": [m("user", "x"), m("critic", "y")],
    "late system": [m("user", "x"), m("assistant", "y"), m("system", "z")],
    "thought": [m("user", "q"), m("assistant", "<think>\nhm\n</think>\n\nanswer"), m("user", "r")],
    "last thought": [m("user", "q"), m("assistant", "<think>\nhm\n</think>\n\nanswer")],
    "reasoning": [m("user", "q"), m("assistant", "answer", reasoning_content="\nbecause\n")],
    "none content": [m("user", "q"), m("assistant", None, tool_calls=[call("noop", {})])],
    "tool": [m("user", "weather?"), m("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2})]),
             m("tool", "22 °C", tool_call_id="abcdef123"), m("assistant", "Warm."), m("user", "Thanks")],
    "tool steps": [m("system", "S"), m("user", "go"),
                   m("assistant", "<think>plan</think>a", tool_calls=[call("noop", {}), call("get_weather", '{"city": "x"}', "123456789")]),
                   m("tool", "r1", tool_call_id="abcdef123"), m("tool", {"content": 3}, tool_call_id="123456789"),
                   m("assistant", "done", reasoning_content="ok")],
    "bad id": [m("user", "w"), m("assistant", "", tool_calls=[call("noop", {}, "short")])],
    "list content": [m("user", [{"type": "text", "text": "hi"}])],
    "none": [],
    "kinds of values": [
        m("user", "go"),
        m("assistant", "\n I call twice. ", reasoning_content="both at once", tool_calls=[
            call("get_weather", {"city": "Zürich\nor </parameter>", "days": 1.50, "at": None, "warm": True, "never": False}),
            call("noop", {"list": ["a", 1, None], "object": {"b": "é\n<x>", "c": [True]}, "number": 12345678901234567890, "empty": ""})]),
        m("tool", "r1"), m("tool", ""), m("assistant", None, reasoning_content="now the rest", tool_calls=[call("noop", {})]),
        m("tool", "r3"), m("assistant", "Done."), m("user", "<tool_response>r4</tool_response>")],
    "pictures": [m("user", [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "image"}])],
    "picture of a system": [m("system", [{"type": "image"}]), m("user", "q")],
    "no question": [m("system", "s"), m("assistant", "a")],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
EXTRAS = [{"add_generation_prompt": False}, {"add_generation_prompt": True},
          {"add_generation_prompt": True, "enable_thinking": False}, {"add_generation_prompt": True, "enable_thinking": True, "tools": TOOLS},
          {"add_generation_prompt": False, "tools": TOOLS, "builtin_tools": ["noop", "code_interpreter"], "in_user_turn": False},
          {"add_generation_prompt": True, "preserve_thinking": True, "reasoning_effort": "low", "add_vision_id": True},
          {"add_generation_prompt": True, "preserve_thinking": False, "reasoning_effort": "high"}]


def families():
    cases = []
    for family, source in FAMILIES.items():
        for chat, messages in CHATS.items():
            for number, extra in enumerate(EXTRAS):
                if number >= len(EXTRAS) - 2 and "add_vision_id" not in source:
                    continue  # The last two set variables that these templates do not know.
                variables = {"tools": None, "documents": None, **TOKENS, "messages": messages, **extra}
                cases.append([family, chat, number, render(source, variables)])
    return {"tokens": TOKENS, "templates": FAMILIES, "chats": CHATS, "extras": EXTRAS, "cases": cases}


def language():
    from chat_language_cases import EXPRESSIONS, TEMPLATES, VARIABLES
    sources = ["{{ " + case + " }}" for case in EXPRESSIONS.split("\n") if case] + TEMPLATES
    return {"variables": VARIABLES, "cases": [[s, render(s, VARIABLES)] for s in sources]}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (("families", families), ("language", language)):
        data = make()
        failing = sum(case[-1] is None for case in data["cases"])
        (folder / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")
        print(f"{name}: {len(data['cases'])} cases, {failing} of them errors")


if __name__ == "__main__":
    main()
