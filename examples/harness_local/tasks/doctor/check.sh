# Every line is a point of a list, and the list names: patient, health, sick, treat.
answer=$(grep .) && ! printf '%s\n' "$answer" | grep -qvE '^ *[*-]( |$)' && printf '%s\n' "$answer" | grep -qiE 'patient|health|sick|treat'
