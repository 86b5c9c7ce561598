# Reads the guest's console and says what passed. Exits with 1 if anything failed.
{ gsub(/\033\[[0-9;]*m/, "") }
/^@@ begin / { note($3); scene = $3; program = $4; said = ""; next }
/^@@ end / { finish_program($3, $5); next }
/^@@ done/ { complete++; next }
/^@@ left: / { fail("leftovers", substr($0, 10)) }
/^test result:/ { passed[scene] += $4; failed[scene] += $6 }
scene != "" { said = said " " $0 }

function note(name) { if (!(name in known)) { known[name] = 1; order[++last] = name } }
function fail(name, why) { note(name); failed[name]++; print "guest: " name ": " why }

function finish_program(name, status) {
    if (name == "no-user-namespaces") {
        if (status != 0 && said ~ /[Uu]ser namespaces/) passed[name]++
        else fail(name, "expected a refusal that speaks of user namespaces, got status " status ":" said)
    } else if (status != 0 && !failed[name]) fail(name, program " ended with status " status)
    seen[name] = 1
    scene = ""
}

END {
    if (complete != boots) fail("guest", "the guest did not come to its end")
    count = split(scenes, wanted, " ")
    for (i = 1; i <= count; i++) if (!(wanted[i] in seen)) fail(wanted[i], "did not run")
    for (i = 1; i <= last; i++) {
        name = order[i]
        printf "guest: %s: %d passed, %d failed\n", name, passed[name], failed[name]
        good += passed[name]
        bad += failed[name]
    }
    printf "guest: %d passed, %d failed\n", good, bad
    exit bad > 0
}
