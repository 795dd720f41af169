# Every line is a point of a list, and the list names: ice, water, frozen, crystal, cold.
answer=$(grep .) && ! printf '%s\n' "$answer" | grep -qvE '^ *[*-]( |$)' && printf '%s\n' "$answer" | grep -qiE 'ice|water|frozen|crystal|cold'
