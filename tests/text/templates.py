"""Chat templates of the kinds that models ship, written for these tests."""

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

# Everything else that templates in the wild use: macros, namespaces, filters, methods, loop controls, the training mark.
WILD = """{%- macro turn(name, text='') -%}[{{ name | upper }}] {{ text }}{{ caller() if caller else '' }}{%- endmacro -%}
{%- set ns = namespace(count=0, seen=[], last='') -%}
{% for m in messages if m.role != 'skip' %}
    {%- if loop.index > 6 %}{% break %}{% endif -%}
    {%- if m.role == 'pass' %}{% continue %}{% endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {%- set ns.seen = ns.seen + [m.role] -%}
    {%- set ns.last = ns.last ~ m.content[:3] ~ ',' -%}
    {%- generation -%}{{ turn(m['role'], m.content.strip() | replace('a', 'A')) }}{%- endgeneration %}
{{ loop.index }}/{{ loop.length }} {{ loop.previtem.role if loop.previtem is defined }} {{ loop.cycle('x', 'y') }}
{% else %}none{% endfor %}
{{ ns.seen | unique | sort | join('+') }} {{ ns.count }} {{ ns.last.rstrip(',').split(',') | length }}
{% call turn('end') %}!{% endcall %}
{{ messages | map(attribute='role') | list | tojson(indent=2) }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ {'b': 1, 'a': [1, 2.5, none, true]} | dictsort }} {{ ('%05.1f' % 3.14159) ~ '{:>6}'.format('ab') }} {{ [3, 1, 2] | sum }} {{ 2 ** 10 }}
{% for key, value in {'x': 'é<&>"', 'y': messages[-1]}.items() %}{{ key }}={{ value | tojson }};{% endfor %}
{{ documents is none }} {{ (tools or []) | length }} {{ eos_token }} {{ 'a' in ['a', 'b'] and 'x' not in ('y', 'z') }} {{ range(2, 10, 3) | list }}
{% filter indent(2) %}one
two{% endfilter %}{% set block %}{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ block * 2 }} {{ extra | default('none') }}
"""
