use std::sync::atomic::{AtomicUsize, Ordering};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use super::*;

/// A P-256 key in PKCS #8, made from a scalar.
fn signing_key(scalar: u8) -> EncodingKey {
    const PREFIX: &[u8] = &[
        0x30, 0x41, 0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x04, 0x27, 0x30, 0x25, 0x02, 0x01, 0x01, 0x04, 0x20,
    ];
    EncodingKey::from_ec_der(&[PREFIX, &[scalar; 32]].concat())
}

fn header(kid: Option<&str>) -> Header {
    Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::ES256) }
}

fn claims() -> Value {
    json!({
        "aud": ["cadre-api"],
        "exp": get_current_timestamp() + 600,
        "nbf": get_current_timestamp() - 1,
        "iss": "https://kubernetes.default.svc",
        "sub": "system:serviceaccount:team:cadre-agent",
        "kubernetes.io": {
            "namespace": "team",
            "pod": {"name": "helper-1", "uid": "pod-uid"},
            "serviceaccount": {"name": "cadre-agent", "uid": "sa-uid"},
        },
    })
}

fn with(path: &str, value: Value) -> Value {
    let mut claims = claims();
    *claims.pointer_mut(path).unwrap() = value;
    claims
}

fn token(kid: &str, key: &EncodingKey, claims: &Value) -> String {
    encode(&header(Some(kid)), claims, key).unwrap()
}

fn good(claims: &Value) -> String {
    token("k1", &signing_key(7), claims)
}

#[derive(Default)]
struct FakeCluster {
    fetches: AtomicUsize,
    reviews: AtomicUsize,
    says_no: bool,
    other_pod: bool,
}

#[async_trait]
impl KeySource for FakeCluster {
    async fn fetch(&self) -> Result<JwkSet, &'static str> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let mut jwk = Jwk::from_encoding_key(&signing_key(7), Algorithm::ES256).map_err(|_| "key")?;
        jwk.common.key_id = Some("k1".to_owned());
        Ok(JwkSet { keys: vec![jwk] })
    }
}

#[async_trait]
impl Reviewer for FakeCluster {
    async fn review(&self, token: &str) -> Result<Option<Reviewed>, Refused> {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        let claims: Value = jsonwebtoken::dangerous::insecure_decode_claims(token).unwrap();
        let pod = if self.other_pod { json!("another") } else { claims["kubernetes.io"]["pod"]["uid"].clone() };
        let user = claims["sub"].as_str().unwrap().to_owned();
        Ok((!self.says_no).then(|| Reviewed { user, pod_uid: pod.as_str().map(str::to_owned) }))
    }
}

fn auth(cluster: FakeCluster) -> (Arc<FakeCluster>, PodAuth) {
    let cluster = Arc::new(cluster);
    let operator = "system:serviceaccount:cadre-system:cadre-operator".to_owned();
    (cluster.clone(), PodAuth::new(cluster.clone(), cluster, operator))
}

#[tokio::test]
async fn a_pods_token_is_reviewed_once() {
    let (cluster, auth) = auth(FakeCluster::default());
    let token = good(&claims());
    for _ in 0..3 {
        let caller = auth.authenticate(&token).await.unwrap();
        assert_eq!(caller, Caller::Pod { namespace: "team".into(), uid: "pod-uid".into() });
    }
    assert_eq!(cluster.reviews.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_operator_is_known_by_its_account() {
    let (_, auth) = auth(FakeCluster::default());
    let mut claims = with("/sub", json!("system:serviceaccount:cadre-system:cadre-operator"));
    claims["kubernetes.io"]["namespace"] = json!("cadre-system");
    claims["kubernetes.io"]["serviceaccount"]["name"] = json!("cadre-operator");
    assert_eq!(auth.authenticate(&good(&claims)).await, Ok(Caller::Operator));
}

#[tokio::test]
async fn tokens_that_are_not_good_are_refused_before_any_review() {
    let past = get_current_timestamp() - 1;
    let mut unbound = claims();
    unbound["kubernetes.io"].as_object_mut().unwrap().remove("pod");
    let mut no_audience = claims();
    no_audience.as_object_mut().unwrap().remove("aud");
    let mut no_expiry = claims();
    no_expiry.as_object_mut().unwrap().remove("exp");
    let other_account = {
        let mut claims = with("/sub", json!("system:serviceaccount:team:default"));
        claims["kubernetes.io"]["serviceaccount"]["name"] = json!("default");
        claims
    };
    let hmac = encode(
        &Header { kid: Some("k1".into()), ..Header::default() },
        &claims(),
        &EncodingKey::from_secret(b"0123456789abcdef0123456789abcdef").unwrap(),
    )
    .unwrap();
    let unsigned = format!("{}.", good(&claims()).rsplit_once('.').unwrap().0);
    let none_header = "eyJhbGciOiJub25lIiwia2lkIjoiazEifQ";
    let alg_none = format!("{none_header}.{}.", good(&claims()).split('.').nth(1).unwrap());
    let cases = [
        ("expired", good(&with("/exp", json!(past))), Refused::Invalid),
        ("not yet", good(&with("/nbf", json!(get_current_timestamp() + 300))), Refused::Invalid),
        ("audience", good(&with("/aud", json!(["https://kubernetes.default.svc"]))), Refused::Invalid),
        ("no audience", good(&no_audience), Refused::Invalid),
        ("no expiry", good(&no_expiry), Refused::Invalid),
        ("other key", token("k1", &signing_key(9), &claims()), Refused::Invalid),
        ("unknown key", token("k2", &signing_key(9), &claims()), Refused::UnknownKey),
        ("no key id", encode(&header(None), &claims(), &signing_key(7)).unwrap(), Refused::Malformed),
        ("hmac", hmac, Refused::Invalid),
        ("unsigned", unsigned, Refused::Invalid),
        ("alg none", alg_none, Refused::Malformed),
        ("other account", good(&other_account), Refused::Account),
        ("no pod", good(&unbound), Refused::Account),
        (
            "sub of another namespace",
            good(&with("/sub", json!("system:serviceaccount:x:cadre-agent"))),
            Refused::Invalid,
        ),
        ("text", "nonsense".to_owned(), Refused::Malformed),
        ("huge", "x".repeat(10_000), Refused::Malformed),
    ];
    let (cluster, auth) = auth(FakeCluster::default());
    for (name, token, refused) in cases {
        assert_eq!(auth.authenticate(&token).await, Err(refused), "{name}");
    }
    assert_eq!(cluster.reviews.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_cluster_has_the_last_word() {
    let (_, refusing) = auth(FakeCluster { says_no: true, ..FakeCluster::default() });
    assert_eq!(refusing.authenticate(&good(&claims())).await, Err(Refused::Review));
    let (_, other) = auth(FakeCluster { other_pod: true, ..FakeCluster::default() });
    assert_eq!(other.authenticate(&good(&claims())).await, Err(Refused::Review));
}

#[tokio::test]
async fn ten_thousand_garbage_tokens_cost_the_cluster_one_request() {
    let (cluster, auth) = auth(FakeCluster::default());
    let body = good(&claims()).split_once('.').unwrap().1.to_owned();
    for number in 0..10_000_u32 {
        use base64::Engine as _;
        let header = json!({"alg": "ES256", "kid": format!("k{}", number + 2)}).to_string();
        let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(header);
        assert_eq!(auth.authenticate(&format!("{header}.{body}")).await, Err(Refused::UnknownKey));
    }
    assert_eq!((cluster.reviews.load(Ordering::Relaxed), cluster.fetches.load(Ordering::Relaxed)), (0, 1));
}

#[tokio::test]
async fn local_workers_show_the_secret_that_they_got() {
    let auth = LocalAuth::generate();
    assert_eq!(auth.authenticate(&auth.token(3)).await, Ok(Caller::Local(3)));
    assert_eq!(LocalAuth::generate().authenticate(&auth.token(3)).await, Err(Refused::Invalid));
    for bad in ["", "3", "x.y", "3."] {
        assert!(auth.authenticate(bad).await.is_err(), "{bad}");
    }
}
