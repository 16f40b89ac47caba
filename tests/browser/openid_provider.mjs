// The OpenID provider of the tests: oidc-provider, certified by the OpenID Foundation, with its own pages to sign in.
// Whoever types a name there is that person. The tests change it by JSON lines on standard input, `[change, value]`,
// and each is answered by a line.
import { generateKeyPairSync } from 'node:crypto';
import http from 'node:http';
import readline from 'node:readline';
import { Provider } from 'oidc-provider';
import { createMemoryAdapter } from 'oidc-provider/lib/adapters/memory_adapter.js';

console.info = console.warn = console.error; // standard output is for the answers
const DAY = 86_400; // seconds
const { port, people, key } = JSON.parse(process.argv[2]);

let ahead = 0; // seconds by which the provider's clock is ahead
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...given) {
    super(...(given.length ? given : [RealDate.now() + ahead * 1000]));
  }

  static now() {
    return RealDate.now() + ahead * 1000;
  }
};

function signingKey(kid) {
  const jwk = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  return { ...jwk, kid, use: 'sig', alg: 'RS256' };
}

let keys = [signingKey(key)]; // the first signs
let clients = [];
let audience = ''; // of access tokens; empty: they are no JWTs
const adapter = createMemoryAdapter(); // sessions outlive a change of the configuration
let url;
let provider;

function build() {
  const ttl = Object.fromEntries(
    ['Session', 'Grant', 'Interaction', 'RefreshToken', 'DeviceCode', 'AuthorizationCode'].map((kind) => [kind, DAY]),
  );
  provider = new Provider(url, {
    adapter,
    clients,
    jwks: { keys },
    cookies: { keys: ['tests'] },
    scopes: ['openid', 'offline_access', 'profile', 'email'],
    claims: { openid: ['sub', ...new Set(Object.values(people).flatMap(Object.keys))] },
    conformIdTokenClaims: false, // ID tokens have the claims, as those of Keycloak, Entra ID and Okta do
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
    extraTokenClaims: (_, token) => people[token.accountId],
    ttl: { ...ttl, IdToken: 300, AccessToken: 300 },
    features: {
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: audience !== '',
        defaultResource: () => audience,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({ scope: '', audience, accessTokenFormat: 'jwt' }),
      },
    },
  });
}

const changes = {
  clients: (given) => {
    clients = given;
    build();
  },
  audience: (given) => {
    audience = given;
    build();
  },
  // A new key that signs from now on. The others stay published, or not.
  rotate: ({ kid, keep }) => {
    keys = [signingKey(kid), ...(keep ? keys : [])];
    build();
  },
  clock: (seconds) => {
    ahead = seconds;
  },
  // What an administrator does to a person's session: nothing that it gave can be renewed.
  end: async (refreshToken) => {
    const { grantId } = await provider.RefreshToken.find(refreshToken);
    await provider.RefreshToken.revokeByGrantId(grantId);
    await (await provider.Grant.find(grantId)).destroy();
  },
};

const server = http.createServer((request, response) => provider.callback()(request, response));
server.listen(port, '127.0.0.1', () => {
  url = `http://127.0.0.1:${server.address().port}`;
  build();
  console.log(url);
});
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const [change, given] = JSON.parse(line);
  await changes[change](given);
  console.log(change);
});
lines.on('close', () => process.exit(0)); // the tests are gone
