#!/bin/sh
# A certificate authority of this deployment's own, and from it a certificate for the gateway and one for the engine.
# Runs at each `up`, and renews what is valid for less than 30 days; Florin and vLLM notice changed files by themselves.
set -eu
cd "${1:-/tls}"
umask 077
days=30

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

if ! openssl x509 -in ca.pem -noout -checkend 0 2>/dev/null; then
    new_key ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=Florin on this host" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.new
    rm -f gateway.pem engine.pem
    mv ca.new ca.pem
fi

# NAME UID SUBJECT_ALT_NAMES
issue() {
    openssl x509 -in "$1.pem" -noout -checkend $((days * 86400)) 2>/dev/null && return
    new_key "$1.key.new"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nauthorityKeyIdentifier=keyid\n' "$3" > extensions
    openssl req -new -key "$1.key.new" -subj "/CN=$1" \
        | openssl x509 -req -CA ca.pem -CAkey ca.key -days 397 -extfile extensions -out "$1.pem.new"
    rm extensions
    chown "$2:$2" "$1.key.new"
    # Written in place where they exist: vLLM 0.32 notices only the first time that a file is replaced by another.
    if [ -e "$1.pem" ] && [ -e "$1.key" ]; then
        cat "$1.key.new" > "$1.key"
        cat "$1.pem.new" > "$1.pem"
        rm "$1.key.new" "$1.pem.new"
    else
        mv "$1.key.new" "$1.key"
        mv "$1.pem.new" "$1.pem"
    fi
    chmod 0644 "$1.pem"
}

issue gateway "${GATEWAY_UID:-10001}" "DNS:gateway,DNS:localhost,IP:127.0.0.1${GATEWAY_NAMES:+,$GATEWAY_NAMES}"
issue engine "${ENGINE_UID:-10002}" "DNS:engine-cpu,DNS:localhost,IP:127.0.0.1"
chmod 0644 ca.pem
chmod 0755 .
