//! The cluster's word on tokens: its public keys, and TokenReview.

use async_trait::async_trait;
use cadre_protocol::worker::TOKEN_AUDIENCE;
use jsonwebtoken::jwk::JwkSet;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::jwks::KeySource;
use super::pod::{Refused, Reviewed, Reviewer};

/// Key under which the cluster tells the pod's UID.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The kube-apiserver.
#[derive(Clone)]
pub struct Cluster(pub Client);

#[async_trait]
impl KeySource for Cluster {
    async fn fetch(&self) -> Result<JwkSet, &'static str> {
        let request = http::Request::get("/openid/v1/jwks").body(Vec::new()).map_err(|_| "request")?;
        let text = self.0.request_text(request).await.map_err(|_| "unavailable")?;
        serde_json::from_str(&text).map_err(|_| "unreadable")
    }
}

#[async_trait]
impl Reviewer for Cluster {
    async fn review(&self, token: &str) -> Result<Option<Reviewed>, Refused> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]) },
            ..TokenReview::default()
        };
        let answered = Api::all(self.0.clone()).create(&PostParams::default(), &review).await;
        let status = answered.map_err(|_| Refused::Unavailable)?.status.unwrap_or_default();
        let audience = status.audiences.is_some_and(|list| list.iter().any(|audience| audience == TOKEN_AUDIENCE));
        if status.authenticated != Some(true) || !audience {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        let pod_uid =
            user.extra.and_then(|mut extra| extra.remove(POD_UID)).and_then(|values| values.into_iter().next());
        Ok(user.username.map(|user| Reviewed { user, pod_uid }))
    }
}
