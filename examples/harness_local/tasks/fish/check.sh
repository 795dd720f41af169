# Every line is a point of a list, and the list names: gill.
answer=$(grep .) && ! printf '%s\n' "$answer" | grep -qvE '^ *[*-]( |$)' && printf '%s\n' "$answer" | grep -qiE 'gill'
